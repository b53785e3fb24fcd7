// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/chunks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace atl::collectives {
namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kUsualChunk = std::uint64_t{128} << 10;
constexpr std::uint64_t kLargeInside = std::uint64_t{4} << 20;
constexpr std::uint64_t kLargeOverBridge = std::uint64_t{512} << 20;
constexpr std::uint64_t kMinSlice = 1024;  // below this a slice costs more in frames than it saves in bytes

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }
std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return divide_up(value, to) * to; }

// Returns the number of elements that fill whole cache lines.
std::uint64_t line_elements(std::uint64_t element_bytes) { return std::max<std::uint64_t>(1, kLine / element_bytes); }

}  // namespace

std::uint64_t chunk_bytes(const Topology& topology, std::uint64_t total_bytes, std::uint64_t element_bytes,
                          const ScheduleLimits& limits) {
  const bool is_large = total_bytes >= (topology.islands.size() > 1 ? kLargeOverBridge : kLargeInside);
  const std::uint64_t wanted = is_large ? limits.max_payload : std::min(limits.max_payload, kUsualChunk);
  const std::uint64_t unit = wanted >= kLine ? kLine : element_bytes;
  return wanted / unit * unit;
}

std::vector<std::uint64_t> cut_evenly(std::uint64_t elements, std::uint64_t parts, std::uint64_t element_bytes) {
  const std::uint64_t line = line_elements(element_bytes);
  const std::uint64_t unit = elements / parts >= line ? line : 1;
  const std::uint64_t quotient = elements / parts;
  const std::uint64_t rest = elements % parts;
  std::vector<std::uint64_t> borders(parts + 1);
  for (std::uint64_t i = 0; i <= parts; ++i) {
    borders[i] = std::min(elements, round_up(i * quotient + divide_up(i * rest, parts), unit));
  }
  return borders;
}

std::vector<Chunk> cut_message(std::uint64_t bytes, std::uint64_t max_bytes, std::uint64_t element_bytes, int owner,
                               std::uint32_t segment) {
  const std::uint64_t parts = std::max<std::uint64_t>(1, divide_up(bytes, max_bytes));
  const auto borders = cut_evenly(bytes / element_bytes, parts, element_bytes);
  std::vector<Chunk> chunks;
  chunks.reserve(parts);
  for (std::uint64_t i = 0; i < parts; ++i) {
    const std::uint64_t begin = borders[i] * element_bytes;
    const std::uint64_t end = borders[i + 1] * element_bytes;
    if (begin == end && i > 0) continue;
    chunks.push_back({owner, segment, begin, end - begin, chunks.size()});
  }
  return chunks;
}

std::vector<Chunk> in_turns(std::vector<std::vector<Chunk>> lists) {
  std::vector<Chunk> chunks;
  bool more = true;
  for (std::size_t round = 0; more; ++round) {
    more = false;
    for (auto& list : lists) {
      if (round < list.size()) chunks.push_back(std::move(list[round]));
      more = more || round + 1 < list.size();
    }
  }
  return chunks;
}

std::vector<Chunk> cut_for_owners(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                  const ScheduleLimits& limits) {
  const std::vector<double> shares = owner_shares(topology);
  const double largest = *std::max_element(shares.begin(), shares.end());
  const std::uint64_t most = chunk_bytes(topology, bytes, element_bytes, limits);
  const auto blocks =
      static_cast<std::uint64_t>(std::ceil(static_cast<double>(bytes) * largest / static_cast<double>(most)));
  const auto borders = cut_evenly(bytes / element_bytes, std::max<std::uint64_t>(1, blocks), element_bytes);
  std::vector<Chunk> chunks;
  std::vector<std::uint64_t> rounds(shares.size(), 0);
  for (std::size_t block = 0; block + 1 < borders.size(); ++block) {
    const std::uint64_t elements = borders[block + 1] - borders[block];
    const std::uint64_t slice_bytes = elements * element_bytes / shares.size();
    const std::uint64_t line = line_elements(element_bytes) * (slice_bytes < kMinSlice ? kMinSlice / kLine : 1);
    const std::uint64_t unit = line * element_bytes <= most ? line : 1;
    double share = 0;
    std::uint64_t begin = 0;
    for (std::size_t owner = 0; owner < shares.size() && begin < elements; ++owner) {
      share += shares[owner];
      const auto wanted = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(elements)));
      const std::uint64_t end = owner + 1 == shares.size() ? elements : std::min(elements, round_up(wanted, unit));
      if (end <= begin) continue;
      // Rounding may push a slice over the limit: it is then two chunks.
      for (const Chunk& part :
           cut_message((end - begin) * element_bytes, most, element_bytes, static_cast<int>(owner), 0)) {
        chunks.push_back(
            {part.owner, 0, (borders[block] + begin) * element_bytes + part.offset, part.bytes, rounds[owner]++});
      }
      begin = end;
    }
  }
  if (chunks.empty()) chunks.push_back({});
  return chunks;
}

std::vector<double> owner_shares(const Topology& topology) {
  const auto islands = static_cast<double>(topology.islands.size());
  std::vector<double> by_rank(static_cast<std::size_t>(topology.size), 1.0 / topology.size);
  if (topology.islands.size() <= 2) return by_rank;
  // Per byte of the message, island i receives 1 - x_i of results and x_i (K - 1) of contributions, and both must fit
  // into T.
  const auto& uplinks = topology.uplinks;
  const double sum = std::accumulate(uplinks.begin(), uplinks.end(), 0.0);
  const double time = std::max(1 / *std::min_element(uplinks.begin(), uplinks.end()), 2 * (islands - 1) / sum);
  std::vector<double> by_island;
  for (const double uplink : uplinks) by_island.push_back(std::max(0.0, (time * uplink - 1) / (islands - 2)));
  const double total = std::accumulate(by_island.begin(), by_island.end(), 0.0);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto island = static_cast<std::size_t>(topology.island_of[rank]);
    by_rank[rank] = by_island[island] / total / static_cast<double>(topology.islands[island].size());
  }
  return by_rank;
}

}  // namespace atl::collectives
