// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/chunks.h"

#include <algorithm>
#include <numeric>

namespace atl::pytorch {
namespace {

using collectives::Call;
using collectives::Operation;
using collectives::Segment;

constexpr std::uint64_t kPartBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kMaxPartsOfMessage = 64;
constexpr std::uint64_t kLineElements = 64;
constexpr std::uint64_t kMaxInCommon = 4096;  // beyond this, equal parts are not worth uneven chunks

// Returns the elements of one segment in a chunk: a multiple of every island's size.
std::uint64_t chunk_elements(const collectives::Topology& topology, std::uint64_t segments,
                             std::uint64_t element_bytes) {
  std::uint64_t unit = kLineElements;
  for (const auto& island : topology.islands) {
    const std::uint64_t common = std::lcm(unit, std::uint64_t{island.size()});
    if (common <= kMaxInCommon) unit = common;
  }
  const std::uint64_t elements = kStagedChunkBytes / segments / element_bytes;
  return std::max(unit, elements / unit * unit);
}

Segment part_of(const Segment& segment, std::uint64_t offset, std::uint64_t bytes) {
  if (offset >= segment.bytes) return {segment.data, 0};
  return {segment.data + offset, std::min(bytes, segment.bytes - offset)};
}

}  // namespace

std::vector<Call> cut_into_chunks(const Call& call, const collectives::Topology& topology) {
  if (is_direct(call.operation)) return {call};
  // The list of all ranks' segments, whose sizes every rank knows.
  const auto& all = call.operation == Operation::kAllGather ? call.output : call.input;
  const std::uint64_t element_bytes = collectives::size_of(call.dtype);
  const std::uint64_t bytes = chunk_elements(topology, all.size(), element_bytes) * element_bytes;
  std::uint64_t longest = 0;
  for (const Segment& segment : all) longest = std::max(longest, segment.bytes);
  if (longest <= bytes) return {call};
  std::vector<Call> chunks;
  for (std::uint64_t offset = 0; offset < longest; offset += bytes) {
    Call& chunk = chunks.emplace_back(call);
    for (Segment& segment : chunk.input) segment = part_of(segment, offset, bytes);
    for (Segment& segment : chunk.output) segment = part_of(segment, offset, bytes);
  }
  return chunks;
}

std::uint64_t part_bytes_of(std::uint64_t bytes) {
  return std::max(kPartBytes, (bytes + kMaxPartsOfMessage - 1) / kMaxPartsOfMessage);
}

}  // namespace atl::pytorch
