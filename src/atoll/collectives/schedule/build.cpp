// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "atoll/collectives/schedule/writer.h"
#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

[[noreturn]] void refuse(const Shape& shape, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, std::string("a schedule for ") + to_string(shape.operation) + ": " + why);
}

bool has_one_message(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kBarrier;
}

void check_counts(const Shape& shape, const std::vector<std::uint64_t>& counts, std::size_t expected) {
  if (counts.size() != expected) {
    refuse(shape, std::to_string(counts.size()) + " element counts given, " + std::to_string(expected) + " needed");
  }
  std::uint64_t left = std::numeric_limits<std::int64_t>::max() / size_of(shape.dtype);
  for (const std::uint64_t count : counts) {
    if (count > left) refuse(shape, "the element counts add up to more bytes than memory can hold");
    left -= count;
  }
}

void check_shape(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  if (rank < 0 || rank >= topology.size) {
    refuse(shape, "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(topology.size));
  }
  if (shape.operation == Operation::kSend || shape.operation == Operation::kReceive)
    refuse(shape, "point-to-point messages have no schedule");
  if (has_root(shape.operation) && (shape.root < 0 || shape.root >= topology.size)) {
    refuse(shape, "root " + std::to_string(shape.root) + " is not in a group of " + std::to_string(topology.size));
  }
  const auto size = static_cast<std::size_t>(topology.size);
  check_counts(shape, shape.counts, has_one_message(shape.operation) ? 1 : size);
  if (shape.operation == Operation::kAllToAll) {
    check_counts(shape, shape.receive_counts, size);
    const auto own = static_cast<std::size_t>(rank);
    if (shape.counts[own] != shape.receive_counts[own]) refuse(shape, "a rank's message to itself has two sizes");
  }
  if (shape.library_inside && (is_direct(shape.operation) || !topology.has_leads())) {
    refuse(shape, "an island's library cannot be used for it");
  }
  const std::uint64_t frame = 64 + (limits.max_payload + 63) / 64 * 64;
  if (limits.max_payload < size_of(shape.dtype) || limits.window < frame) {
    refuse(shape, "frames of " + std::to_string(limits.max_payload) + " bytes in a window of " +
                      std::to_string(limits.window) + " bytes cannot carry it");
  }
}

}  // namespace

Schedule build_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  check_shape(topology, shape, rank, limits);
  return is_direct(shape.operation) ? build_direct_schedule(topology, shape, rank, limits)
                                    : build_tree_schedule(topology, shape, rank, limits);
}

}  // namespace atl::collectives
