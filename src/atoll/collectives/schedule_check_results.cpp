// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule_check_run.h"

namespace atl::collectives::detail {
namespace {

bool is_reduction(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kBarrier || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

// Whose contribution output `segment` of `rank` must hold after an operation that only moves data, and which of its
// segments.
std::pair<int, std::uint32_t> expected_copy(const Shape& shape, int rank, std::uint32_t segment) {
  switch (shape.operation) {
    case Operation::kBroadcast: return {shape.root, 0};
    case Operation::kScatter: return {shape.root, static_cast<std::uint32_t>(rank)};
    case Operation::kAllToAll: return {static_cast<int>(segment), static_cast<std::uint32_t>(rank)};
    default: return {static_cast<int>(segment), 0};
  }
}

// Joins neighbours with one expression, so that equal contents look equal.
Runs merged(const Runs& runs) {
  Runs result;
  for (const Run& run : runs) {
    if (!result.empty() && result.back().value.expression == run.value.expression) {
      result.back().bytes += run.bytes;
    } else {
      result.push_back(run);
    }
  }
  return result;
}

}  // namespace

std::string CheckRun::check_results() {
  for (const auto& [key, channel] : channels_) {
    if (channel.frames.empty()) continue;
    const auto size = static_cast<std::uint64_t>(schedules_.size());
    return "rank " + std::to_string(key / 2 % size) + " leaves a frame of rank " + std::to_string(key / 2 / size) +
           " untaken";
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
  const bool reduction = is_reduction(shape.operation);
  const std::uint32_t reduced = shape.operation == Operation::kReduceScatter ? static_cast<std::uint32_t>(rank) : 0;
  std::uint64_t offset = 0;
  for (const Run& run : runs) {
    const Value& value = run.value;
    const std::string where = " + " + std::to_string(offset) + ": ";
    if (value.expression == Expressions::kNothing) return where + "nothing was written";
    const auto [source, source_segment] = reduction ? std::pair(0, reduced) : expected_copy(shape, rank, segment);
    if (value.segment != source_segment || value.origin != offset) {
      return where + "holds bytes from offset " + std::to_string(value.origin) + " of segment " +
             std::to_string(value.segment);
    }
    if (reduction) {
      const auto [judged, is_new] = judged_.try_emplace(value.expression);
      if (is_new) judged->second = expressions_.check_result(topology_, value.expression);
      if (!judged->second.empty()) return where + judged->second;
    } else if (value.expression != expressions_.contribution(source)) {
      return where + "holds " + expressions_.print(value.expression) + " instead of the contribution of rank " +
             std::to_string(source);
    }
    offset += run.bytes;
  }
  const bool all_equal = shape.operation == Operation::kAllReduce || shape.operation == Operation::kBarrier;
  return all_equal ? check_agreement(runs) : "";
}

std::string CheckRun::check_agreement(const Runs& runs) {
  const Runs held = merged(runs);
  if (!agreed_) agreed_ = held;
  if (held.size() != agreed_->size()) return ": is folded otherwise than on rank 0";
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Run& other = (*agreed_)[i];
    if (held[i].bytes != other.bytes || held[i].value.expression != other.value.expression)
      return ": is folded otherwise than on rank 0";
  }
  return "";
}

}  // namespace atl::collectives::detail
