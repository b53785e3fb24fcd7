// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/check_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "atoll/collectives/schedule/chunks.h"

namespace atl::collectives::detail {
namespace {

// Returns the output segment that is input segment `input` of the same rank in an in-place call, or -1.
int output_of_input(const Shape& shape, int rank, std::size_t input) {
  const bool own = static_cast<int>(input) == rank;
  switch (shape.operation) {
    case Operation::kAllReduce:
    case Operation::kBarrier:
    case Operation::kBroadcast: return 0;
    case Operation::kReduce: return rank == shape.root ? 0 : -1;
    case Operation::kAllGather: return rank;
    case Operation::kGather: return rank == shape.root ? rank : -1;
    case Operation::kReduceScatter: return own ? 0 : -1;
    case Operation::kScatter: return own ? 0 : -1;
    default: return -1;
  }
}

}  // namespace

Expressions::Id Expressions::contribution(int rank) {
  const auto [found, is_new] = known_.try_emplace({rank}, static_cast<Id>(expressions_.size()));
  if (is_new) expressions_.push_back({{}, {rank}, false});
  return found->second;
}

Expressions::Id Expressions::fold(const std::vector<Id>& sources, bool raw, bool final, std::string& fault) {
  std::vector<Id> key{-1, raw ? 1 : 0, final ? 1 : 0};
  key.insert(key.end(), sources.begin(), sources.end());
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  Expression made;
  for (const Id source : sources) {
    if (source == kNothing) {
      fault = "folds memory that was never written";
      return kNothing;
    }
    if (is_contribution(source) != raw) {
      fault = raw ? "treats the partial result " + print(source) + " as a raw contribution"
                  : "folds the raw contribution of rank " + print(source) + " among partial results";
      return kNothing;
    }
    if (at(source).final) {
      fault = "folds the owner's result " + print(source) + " again";
      return kNothing;
    }
    made.ranks.insert(made.ranks.end(), at(source).ranks.begin(), at(source).ranks.end());
  }
  auto sorted = made.ranks;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    fault = "folds the contribution of rank " + std::to_string(*twice) + " twice";
    return kNothing;
  }
  made.sources = sources;
  made.final = final;
  const Id id = static_cast<Id>(expressions_.size());
  expressions_.push_back(std::move(made));
  known_.emplace(std::move(key), id);
  return id;
}

std::string Expressions::check_result(const Topology& topology, Id id) const {
  if (id == kNothing) return "nothing was written";
  std::vector<int> order;
  if (topology.flat_reduce) {
    order.resize(static_cast<std::size_t>(topology.size));
    std::iota(order.begin(), order.end(), 0);
  } else {
    for (const auto& island : topology.islands) order.insert(order.end(), island.begin(), island.end());
  }
  const Expression& result = at(id);
  if (!result.final) return print(id) + " lacks the owner's last fold";
  if (result.ranks != order) {
    return result.ranks.size() < order.size() ? print(id) + " misses contributions"
                                              : print(id) + " is folded in another order than the topology's";
  }
  const bool grouped = topology.flat_reduce
                           ? result.sources.size() == order.size() && is_contribution(result.sources.front())
                           : respects_islands(topology, id);
  return grouped ? "" : print(id) + " is grouped differently than the topology";
}

// Returns whether every fold stays within one island or folds whole islands.
bool Expressions::respects_islands(const Topology& topology, Id id) const {
  const Expression& expression = at(id);
  if (expression.sources.empty()) return true;
  std::vector<std::size_t> met(topology.islands.size(), 0);
  for (const int rank : expression.ranks)
    ++met[static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank)])];
  const auto touched = std::ranges::count_if(met, [](std::size_t count) { return count > 0; });
  for (std::size_t island = 0; touched > 1 && island < met.size(); ++island) {
    if (met[island] != 0 && met[island] != topology.islands[island].size()) return false;
  }
  return std::ranges::all_of(expression.sources, [&](Id source) { return respects_islands(topology, source); });
}

std::string Expressions::print(Id id) const {
  if (id == kNothing) return "nothing";
  if (is_contribution(id)) return std::to_string(at(id).ranks.front());
  std::string text = "(";
  for (const Id source : at(id).sources) text += (text.size() > 1 ? " " : "") + print(source);
  return text + ")";
}

Runs fold_runs(Expressions& expressions, const std::vector<Runs>& sources, bool raw, bool final, std::string& fault) {
  struct Cursor {
    std::size_t run = 0;
    std::uint64_t done = 0;  // bytes of that run
  };
  Runs result;
  std::vector<Cursor> cursors(sources.size());
  std::vector<Expressions::Id> ids(sources.size());
  while (cursors[0].run < sources[0].size()) {
    std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
    for (std::size_t i = 0; i < sources.size(); ++i)
      bytes = std::min(bytes, sources[i][cursors[i].run].bytes - cursors[i].done);
    Value first;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      Cursor& cursor = cursors[i];
      const Run& run = sources[i][cursor.run];
      Value value = run.value;
      value.origin += cursor.done;
      ids[i] = value.expression;
      if (i == 0) first = value;
      if (value.segment != first.segment || value.origin != first.origin) {
        fault = "folds bytes of different positions: " + std::to_string(first.origin) + " of segment " +
                std::to_string(first.segment) + " and " + std::to_string(value.origin) + " of segment " +
                std::to_string(value.segment);
        return {};
      }
      cursor.done += bytes;
      if (cursor.done == run.bytes) cursor = {cursor.run + 1, 0};
    }
    first.expression = expressions.fold(ids, raw, final, fault);
    if (first.expression == Expressions::kNothing) return {};
    result.push_back({bytes, first});
  }
  return result;
}

std::vector<std::uint64_t> segment_bytes(const Topology& topology, const Shape& shape, int rank, Space space) {
  const bool input = space == Space::kInput;
  const auto& all = shape.counts;
  const auto own = [&] { return std::vector{all[static_cast<std::size_t>(rank)]}; };
  const auto at_root = rank == shape.root ? all : std::vector<std::uint64_t>();
  auto counts = all;
  switch (shape.operation) {
    case Operation::kAllGather: counts = input ? own() : all; break;
    case Operation::kGather: counts = input ? own() : at_root; break;
    case Operation::kReduceScatter: counts = input ? all : own(); break;
    case Operation::kScatter: counts = input ? at_root : own(); break;
    case Operation::kAllToAll: counts = input ? all : shape.receive_counts; break;
    case Operation::kReduce: counts = input ? all : at_root; break;
    default: break;
  }
  counts.resize(std::min(counts.size(), static_cast<std::size_t>(topology.size)));
  for (auto& count : counts) count *= size_of(shape.dtype);
  return counts;
}

Memory::Memory(const Topology& topology, const Shape& shape, int rank, bool in_place, std::uint64_t scratch_bytes,
               const ScheduleLimits& limits, Expressions& expressions) {
  const auto add = [&](std::uint64_t bytes, Value value) {
    areas_.emplace_back();
    if (bytes > 0) areas_.back()[0] = {bytes, value, {}, {}};
    return areas_.size() - 1;
  };
  const auto inputs = segment_bytes(topology, shape, rank, Space::kInput);
  const auto outputs = segment_bytes(topology, shape, rank, Space::kOutput);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Value value{expressions.contribution(rank), static_cast<std::uint32_t>(i), 0};
    if (shape.library_inside) value.expression = Expressions::kNothing;
    input_area_.push_back(add(inputs[i], value));
  }
  if (shape.library_inside) place_led_inputs(topology, shape, rank, limits, expressions);
  output_area_.assign(outputs.size(), 0);
  for (std::size_t i = 0; i < outputs.size(); ++i) output_area_[i] = add(outputs[i], {});
  for (std::size_t i = 0; in_place && i < inputs.size(); ++i) {
    const int output = output_of_input(shape, rank, i);
    if (output >= 0) output_area_[static_cast<std::size_t>(output)] = input_area_[i];
  }
  scratch_area_ = add(scratch_bytes, {});
}

void Memory::place_led_inputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits,
                              Expressions& expressions) {
  Value value{expressions.contribution(rank), 0, 0};
  if (has_reduction(shape.operation) || shape.operation == Operation::kBarrier) {
    std::vector<Expressions::Id> members;
    for (const int member : topology.island_with(rank)) members.push_back(expressions.contribution(member));
    std::string fault;
    value.expression = expressions.fold(members, /*raw=*/true, /*final=*/false, fault);
  }
  for (const Range& range : led_inputs(topology, shape, rank, limits)) {
    Area& area = areas_[input_area_[range.segment]];
    cut(area, range.offset);
    cut(area, range.offset + range.bytes);
    value.segment = range.segment;
    value.origin = range.offset;
    area.at(range.offset).value = value;
  }
}

// Returns the index of the memory that a range lies in; past the end if there is no such segment.
std::size_t Memory::area_of(const Range& range) const {
  if (range.space == Space::kScratch) return scratch_area_;
  const auto& areas = range.space == Space::kInput ? input_area_ : output_area_;
  return range.segment < areas.size() ? areas[range.segment] : areas_.size();
}

// Makes `offset` a border between pieces.
void Memory::cut(Area& area, std::uint64_t offset) {
  auto piece = area.upper_bound(offset);
  if (piece == area.begin()) return;
  --piece;
  const std::uint64_t head = offset - piece->first;
  if (head == 0 || head >= piece->second.bytes) return;
  Piece tail = piece->second;
  tail.bytes -= head;
  tail.value.origin += head;
  piece->second.bytes = head;
  area.emplace(offset, std::move(tail));
}

Runs Memory::read(const Range& range, const Moment& now, std::string& fault) {
  if (range.bytes == 0) return {};
  Area& area = areas_[area_of(range)];
  cut(area, range.offset);
  cut(area, range.offset + range.bytes);
  Runs runs;
  const auto end = area.lower_bound(range.offset + range.bytes);
  for (auto it = area.lower_bound(range.offset); it != end; ++it) {
    Piece& piece = it->second;
    if (piece.value.expression == Expressions::kNothing) fault = "reads memory that was never written";
    if (now.known[piece.writer.lane] < piece.writer.step)
      fault = "reads memory that another lane writes, without an order between them";
    const auto same_lane = std::ranges::find(piece.readers, now.lane, &Access::lane);
    if (same_lane != piece.readers.end()) {
      same_lane->step = now.step;
    } else {
      piece.readers.push_back({now.lane, now.step});
    }
    runs.push_back({piece.bytes, piece.value});
  }
  return runs;
}

void Memory::write(const Range& range, const Runs& runs, const Moment& now, std::string& fault) {
  if (range.bytes == 0) return;
  Area& area = areas_[area_of(range)];
  cut(area, range.offset);
  cut(area, range.offset + range.bytes);
  const auto begin = area.lower_bound(range.offset);
  const auto end = area.lower_bound(range.offset + range.bytes);
  for (auto it = begin; it != end; ++it) {
    const Piece& piece = it->second;
    if (now.known[piece.writer.lane] < piece.writer.step)
      fault = "writes memory that another lane writes, without an order between them";
    for (const Access& reader : piece.readers) {
      if (now.known[reader.lane] < reader.step)
        fault = "writes memory that another lane reads, without an order between them";
    }
  }
  area.erase(begin, end);
  std::uint64_t offset = range.offset;
  for (const Run& run : runs) {
    area[offset] = {run.bytes, run.value, {now.lane, now.step}, {}};
    offset += run.bytes;
  }
}

Runs Memory::output(std::uint32_t segment) const {
  Runs runs;
  for (const auto& [offset, piece] : areas_[output_area_[segment]]) runs.push_back({piece.bytes, piece.value});
  return runs;
}

}  // namespace atl::collectives::detail
