// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/collectives/schedule/executor.h"

namespace atl::collectives {

inline std::uint64_t elapsed_ns(Clock::time_point since) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - since).count());
}

struct Executor::Run {
  const Schedule& schedule;
  const Call& call;
  const Signature& signature;
  Deadline deadline;
  Fold fold;
  std::size_t element_bytes;
  CallProgress* parts;  // null if all of the input is in memory
  Clock::time_point entered{};
  Clock::time_point stalled_since{};               // when it last made progress,
  std::optional<Clock::time_point> report_at{};    // and when the stall is to be reported next
  int checks = 0;                                  // of all stalls
  bool awaits_input = false;                       // as of the last pass over all lanes
  std::optional<Clock::time_point> ahead_since{};  // since when a peer is known to be in a later operation

  std::byte* at(const Range& range, std::byte* scratch) const {
    if (range.space == Space::kScratch) return scratch + range.offset;
    const auto& segments = range.space == Space::kInput ? call.input : call.output;
    return segments[range.segment].data + range.offset;
  }
  bool is_loaded(const Range& range) const {
    return !parts || range.bytes == 0 || parts->is_loaded(range.segment, range.offset + range.bytes);
  }
  std::uint64_t elements() const { return call.input.empty() ? 0 : call.input[0].bytes / element_bytes; }
  std::string name() const { return describe(signature, elements()); }
  std::string where(int rank) const { return name() + " on rank " + std::to_string(rank); }
};

}  // namespace atl::collectives
