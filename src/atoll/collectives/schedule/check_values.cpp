// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/check_values.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace atl::collectives::detail {

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
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
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
  const auto touched = std::count_if(met.begin(), met.end(), [](std::size_t count) { return count > 0; });
  for (std::size_t island = 0; touched > 1 && island < met.size(); ++island) {
    if (met[island] != 0 && met[island] != topology.islands[island].size()) return false;
  }
  return std::all_of(expression.sources.begin(), expression.sources.end(),
                     [&](Id source) { return respects_islands(topology, source); });
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

}  // namespace atl::collectives::detail
