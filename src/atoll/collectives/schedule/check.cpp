// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/check_rules.h"
#include "atoll/collectives/schedule/check_run.h"
#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

std::string check_schedules(const Topology& topology, const std::vector<Shape>& shapes,
                            const std::vector<Schedule>& schedules, const ScheduleLimits& limits) {
  const auto size = static_cast<std::size_t>(topology.size);
  if (shapes.size() != size || schedules.size() != size) return "there must be one shape and one schedule per rank";
  for (int rank = 0; rank < topology.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const std::string fault = detail::check_rules(topology, shapes[index], rank, schedules[index], limits);
    if (!fault.empty()) return "rank " + std::to_string(rank) + ", " + fault;
  }
  return detail::CheckRun(topology, shapes, schedules, limits).run();
}

}  // namespace atl::collectives
