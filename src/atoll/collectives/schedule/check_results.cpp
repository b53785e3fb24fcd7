// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/check_run.h"

#include <algorithm>
#include <iterator>

#include "atoll/collectives/schedule/leads.h"

namespace atl::collectives::detail {
namespace {

// Returns the rank whose contribution output `segment` of `rank` must hold after an operation that only moves data, and
// which of that rank's segments it is.
std::pair<int, std::uint32_t> expected_copy(const Shape& shape, int rank, std::uint32_t segment) {
  switch (shape.operation) {
    case Operation::kBroadcast: return {shape.root, 0};
    case Operation::kScatter: return {shape.root, static_cast<std::uint32_t>(rank)};
    case Operation::kAllToAll: return {static_cast<int>(segment), static_cast<std::uint32_t>(rank)};
    default: return {static_cast<int>(segment), 0};
  }
}

// Returns whether this rank gets these bytes of its output from the schedule, and not from the island's library.
bool is_ours(const std::vector<Range>& led, std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes) {
  return std::any_of(led.begin(), led.end(), [&](const Range& range) {
    return range.segment == segment && offset >= range.offset && offset + bytes <= range.offset + range.bytes;
  });
}

}  // namespace

std::string CheckRun::check_results() {
  for (const auto& [key, channel] : channels_) {
    if (channel.frames.empty()) continue;
    const auto size = static_cast<std::uint64_t>(schedules_.size());
    return "rank " + std::to_string(key / 2 % size) + " does not take a frame of rank " +
           std::to_string(key / 2 / size);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto outputs = segment_bytes(topology_, shapes_[rank], static_cast<int>(rank), Space::kOutput);
    for (const auto& world : ranks_[rank].worlds) {
      for (std::uint32_t segment = 0; world && segment < outputs.size(); ++segment) {
        const std::string fault = check_segment(static_cast<int>(rank), segment, world->output(segment));
        if (!fault.empty()) return "rank " + std::to_string(rank) + ", output " + std::to_string(segment) + fault;
      }
    }
  }
  return "";
}

std::string CheckRun::check_segment(int rank, std::uint32_t segment, const Runs& runs) {
  const Shape& shape = shapes_[static_cast<std::size_t>(rank)];
  std::vector<Range> led;
  std::uint64_t missing = 0;
  if (shape.library_inside) led = led_outputs(topology_, shape, rank, limits_);
  for (const Range& range : led) missing += range.segment == segment ? range.bytes : 0;
  const bool all_equal = shape.operation == Operation::kAllReduce || shape.operation == Operation::kBarrier;
  std::uint64_t offset = 0;
  for (const Run& run : runs) {
    const bool ours = !shape.library_inside || is_ours(led, segment, offset, run.bytes);
    std::string fault = ours ? check_run(rank, segment, offset, run.value) : "";
    if (fault.empty() && ours && all_equal) fault = check_agreement(offset, run);
    if (!fault.empty()) return " + " + std::to_string(offset) + ": " + fault;
    if (ours && shape.library_inside) missing -= run.bytes;
    offset += run.bytes;
  }
  return missing == 0 ? "" : ": " + std::to_string(missing) + " bytes that this rank leads were not written";
}

// Checks the value at `offset` of an output segment.
std::string CheckRun::check_run(int rank, std::uint32_t segment, std::uint64_t offset, const Value& value) {
  const Shape& shape = shapes_[static_cast<std::size_t>(rank)];
  const bool reduction = has_reduction(shape.operation) || shape.operation == Operation::kBarrier;
  const std::uint32_t reduced = shape.operation == Operation::kReduceScatter ? static_cast<std::uint32_t>(rank) : 0;
  if (value.expression == Expressions::kNothing) return "nothing was written";
  const auto [source, source_segment] = reduction ? std::pair(0, reduced) : expected_copy(shape, rank, segment);
  if (value.segment != source_segment || value.origin != offset) {
    return "holds bytes from offset " + std::to_string(value.origin) + " of segment " + std::to_string(value.segment);
  }
  if (reduction) {
    const auto [judged, is_new] = judged_.try_emplace(value.expression);
    if (is_new) judged->second = expressions_.check_result(topology_, value.expression);
    return judged->second;
  }
  if (value.expression == expressions_.contribution(source)) return "";
  return "holds " + expressions_.print(value.expression) + " instead of the contribution of rank " +
         std::to_string(source);
}

// Equal expressions mean equal bits.
std::string CheckRun::check_agreement(std::uint64_t offset, const Run& run) {
  const std::uint64_t end = offset + run.bytes;
  auto next = agreed_.upper_bound(offset);
  if (next != agreed_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > offset) --next;
  while (offset < end) {
    if (next == agreed_.end() || next->first > offset) {
      const std::uint64_t gap_end = next == agreed_.end() ? end : std::min(end, next->first);
      agreed_.emplace(offset, Run{gap_end - offset, run.value});
      offset = gap_end;
      continue;
    }
    if (next->second.value.expression != run.value.expression) return "is folded differently than on other ranks";
    offset = std::min(end, next->first + next->second.bytes);
    ++next;
  }
  return "";
}

}  // namespace atl::collectives::detail
