// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/expectation.h"

#include <algorithm>
#include <utility>

#include "atoll/plan/operators/server_load.h"

namespace atl::plan::fleet {
namespace {

struct Use {
  double alone = 0;
  double up = 0;  // seconds on the radio; includes `down` if it is one medium
  double down = 0;
  double server = 0;
  double period = 0;
  // Expected values.
  double seconds = 0;
  double waited = 0;
  double up_taken = 0;
  double down_taken = 0;

  double per_second() const { return seconds > 0 || period > 0 ? 1 / std::max(period, seconds) : 0; }
};

Use use_of(const FleetSimulator& fleet, std::size_t robot, std::size_t chosen) {
  const LinkCost& link = fleet.robots()[robot].link;
  const OperatorPlan& plan = fleet.candidate(robot, chosen);
  Use use;
  use.alone = use.seconds = plan.seconds;
  use.up = plan.up_bytes / link.up_bytes_per_second;
  use.down = plan.down_bytes / link.down_bytes_per_second;
  if (link.is_half_duplex) use.up += std::exchange(use.down, 0);
  use.server = plan.server_busy;
  use.period = fleet.robots()[robot].period;
  use.up_taken = use.up;
  use.down_taken = use.down;
  return use;
}

// The load that `self` sees from the others.
void expect(std::vector<Use>& uses, std::size_t self, const Shared& shared) {
  ServerLoad load;
  load.turns = shared.turns;
  double down_messages = 0;
  double turns = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (i == self) continue;
    const Use& other = uses[i];
    load.messages += other.per_second() * other.up_taken;
    down_messages += other.per_second() * other.down_taken;
    load.computing += other.per_second() * other.server;
    load.waiting += other.per_second() * other.waited;
    if (other.server > 0) turns += other.per_second();
  }
  if (turns > 0) load.turn_seconds = load.computing / turns;
  Use& use = uses[self];
  const double up = use.up * expected_stretch(load) / shared.airtime;
  load.messages = down_messages;
  const double down = use.down * expected_stretch(load) / shared.airtime;
  const double waited = use.server > 0 ? expected_wait(load) : 0;
  // Damped by half, so that the robots do not oscillate in response to one another.
  use.up_taken = (use.up_taken + up) / 2;
  use.down_taken = (use.down_taken + down) / 2;
  use.waited = (use.waited + waited) / 2;
  use.seconds = use.alone + use.up_taken - use.up + use.down_taken - use.down + use.waited;
}

}  // namespace

std::vector<double> expected_seconds(const FleetSimulator& fleet, std::span<const std::size_t> choice) {
  constexpr int kSteps = 60;
  std::vector<Use> uses;
  for (std::size_t i = 0; i < choice.size(); ++i) uses.push_back(use_of(fleet, i, choice[i]));
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < uses.size(); ++i) expect(uses, i, fleet.shared());
  }
  std::vector<double> seconds;
  for (const Use& use : uses) seconds.push_back(use.seconds);
  return seconds;
}

}  // namespace atl::plan::fleet
