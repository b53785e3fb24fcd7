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

// Returns the chunks of all lists: first the first one of each, then the second ones.
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

constexpr std::size_t kNoIsland = static_cast<std::size_t>(-1);

// Elements of a message with the same lead in every island.
struct Section {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<int> leads;
};

std::size_t island_of(const Topology& topology, int rank) {
  return static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank)]);
}

// Returns the sections of a message: at least one, which may be empty. `owner`, if there is one, leads all of it in its
// own island. Without leads it is one section.
std::vector<Section> sections_of(const Topology& topology, std::uint64_t elements, int owner,
                                 std::uint64_t element_bytes, const ScheduleLimits& limits) {
  if (!topology.has_leads()) return {Section{0, elements, {}}};
  const std::size_t home = owner < 0 ? kNoIsland : island_of(topology, owner);
  std::vector<std::uint64_t> parts;  // by island
  std::vector<std::uint64_t> borders{0, elements};
  for (const auto& island : topology.islands) {
    const bool is_home = parts.size() == home;
    parts.push_back(is_home ? elements : led_elements(elements, element_bytes, island.size(), limits));
    for (std::uint64_t at = parts.back(); at > 0 && at < elements; at += parts.back()) borders.push_back(at);
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Section> sections;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    if (borders[i] == borders[i + 1] && !(sections.empty() && i + 2 == borders.size())) continue;
    Section section{borders[i], borders[i + 1], {}};
    for (std::size_t island = 0; island < parts.size(); ++island) {
      const std::uint64_t place = parts[island] == 0 ? 0 : section.begin / parts[island];
      section.leads.push_back(island == home ? owner : topology.islands[island][place]);
    }
    sections.push_back(std::move(section));
  }
  return sections;
}

// Returns the chunks of the elements [begin, end) of a message, with one owner.
std::vector<Chunk> cut_section(const Section& section, std::uint64_t begin, std::uint64_t end, int owner,
                               std::uint32_t segment, std::uint64_t max_bytes, std::uint64_t element_bytes) {
  auto chunks = cut_message((end - begin) * element_bytes, max_bytes, element_bytes, owner, segment);
  for (Chunk& chunk : chunks) {
    chunk.offset += begin * element_bytes;
    chunk.leads = section.leads;
  }
  return chunks;
}

std::vector<double> shares_by_island(const Topology& topology) {
  const auto by_rank = owner_shares(topology);
  std::vector<double> shares(topology.islands.size(), 0.0);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    shares[island_of(topology, static_cast<int>(rank))] += by_rank[rank];
  return shares;
}

// Returns what `rank` leads of its input, or of its output.
std::vector<Range> led_ranges(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits,
                              Space space) {
  const std::uint64_t element_bytes = size_of(shape.dtype);
  const auto own = static_cast<std::size_t>(rank);
  std::vector<Range> ranges;
  const auto add = [&](std::size_t segment, std::uint64_t begin, std::uint64_t end) {
    if (begin == end) return;
    ranges.push_back(
        {space, static_cast<std::uint32_t>(segment), begin * element_bytes, (end - begin) * element_bytes});
  };
  const auto add_part = [&](std::size_t segment) {
    const std::uint64_t elements = shape.counts[segment];
    const std::uint64_t part = led_elements(elements, element_bytes, topology.island_with(rank).size(), limits);
    const std::uint64_t begin = std::min(elements, static_cast<std::uint64_t>(topology.place_in_island(rank)) * part);
    add(segment, begin, std::min(elements, begin + part));
  };
  const bool is_input = space == Space::kInput;
  switch (shape.operation) {
    case Operation::kAllReduce:
    case Operation::kBarrier: add_part(0); break;
    case Operation::kReduce:
      if (rank == shape.root) add(0, 0, shape.counts[0]);
      if (is_input && !topology.same_island(rank, shape.root)) add_part(0);
      break;
    case Operation::kBroadcast:
      if (is_input && rank == shape.root) add(0, 0, shape.counts[0]);
      if (!is_input && !topology.same_island(rank, shape.root)) add_part(0);
      break;
    case Operation::kAllGather:
    case Operation::kReduceScatter: {
      const bool gathers = shape.operation == Operation::kAllGather;
      if (is_input == gathers) add(0, 0, shape.counts[own]);
      for (std::size_t segment = 0; is_input != gathers && segment < shape.counts.size(); ++segment) {
        if (!gathers && segment == own) add(segment, 0, shape.counts[segment]);
        if (!topology.same_island(rank, static_cast<int>(segment))) add_part(segment);
      }
      break;
    }
    default: break;
  }
  return ranges;
}

// Returns the chunks of one message, owned by leads in proportion to owner_shares.
std::vector<Chunk> cut_for_leads(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                 const ScheduleLimits& limits) {
  const std::uint64_t most = chunk_bytes(topology, bytes, element_bytes, limits);
  const std::vector<double> shares = shares_by_island(topology);
  std::vector<std::vector<Chunk>> lists;
  for (const Section& section : sections_of(topology, bytes / element_bytes, -1, element_bytes, limits)) {
    const std::uint64_t elements = section.end - section.begin;
    double share = 0;
    std::uint64_t begin = section.begin;
    for (std::size_t island = 0; island < shares.size(); ++island) {
      share += shares[island];
      const bool last = island + 1 == shares.size();
      const auto wanted = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(elements)));
      const std::uint64_t end = last ? section.end : std::max(begin, std::min(section.end, section.begin + wanted));
      const bool only = elements == 0 && last;
      if (end > begin || only) {
        lists.push_back(cut_section(section, begin, end, section.leads[island], 0, most, element_bytes));
      }
      begin = end;
    }
  }
  return in_turns(std::move(lists));
}

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

std::vector<Chunk> cut_for_owners(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                  const ScheduleLimits& limits) {
  if (topology.has_leads()) return cut_for_leads(topology, bytes, element_bytes, limits);
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

std::uint64_t led_elements(std::uint64_t elements, std::uint64_t element_bytes, std::uint64_t island_size,
                           const ScheduleLimits& limits) {
  if (elements * element_bytes <= limits.small_bytes) return elements;
  return (elements + island_size - 1) / island_size;
}

std::vector<Range> led_inputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  return led_ranges(topology, shape, rank, limits, Space::kInput);
}

std::vector<Range> led_outputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  return led_ranges(topology, shape, rank, limits, Space::kOutput);
}

std::vector<Chunk> cut_messages(const Topology& topology, const std::vector<std::uint64_t>& counts,
                                const std::vector<int>& owners, std::uint64_t element_bytes,
                                const ScheduleLimits& limits) {
  const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) * element_bytes;
  const std::uint64_t most = chunk_bytes(topology, total, element_bytes, limits);
  std::vector<std::vector<Chunk>> lists;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    for (const Section& section : sections_of(topology, counts[s], owners[s], element_bytes, limits)) {
      lists.push_back(cut_section(section, section.begin, section.end, owners[s], static_cast<std::uint32_t>(s), most,
                                  element_bytes));
    }
  }
  return in_turns(std::move(lists));
}

std::vector<int> first_ranks(const Topology& topology) {
  std::vector<int> ranks;
  for (const auto& island : topology.islands) ranks.push_back(island.front());
  return ranks;
}

}  // namespace atl::collectives
