// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/exchange.h"

#include <algorithm>
#include <string>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/stages.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

std::string text(Region region) { return "[" + std::to_string(region.begin) + ", " + std::to_string(region.end) + ")"; }

const char* name_of(Side side) { return side == Side::kRobot ? "robot" : "server"; }
Side other(Side side) { return side == Side::kRobot ? Side::kServer : Side::kRobot; }

Region all_of(const OperatorGraph& graph, int index) { return {0, operator_at(graph, index).rows}; }

Region needed(const OperatorGraph& graph, const Operand& operand, Region made) {
  const Region all = all_of(graph, operand.producer);
  return intersection(rows_needed(operand, made, all.end), all);
}

void check_shares(const OperatorGraph& graph, std::span<const Share> shares) {
  if (shares.size() != graph.operators.size()) {
    refuse(counted(shares.size(), "share") + " for " + counted(graph.operators.size(), "operator") +
           ": give one for each");
  }
  for (int i = 0; i < static_cast<int>(shares.size()); ++i) {
    const Share& share = shares[as_index(i)];
    for (const Side side : {Side::kRobot, Side::kServer}) {
      if (all_of(graph, i).holds(made_by(share, side))) continue;
      refuse(operator_name(graph, i) + " has " + counted(operator_at(graph, i).rows, "row") +
             ", and its share on the " + name_of(side) + " is " + text(made_by(share, side)));
    }
    if (operator_at(graph, i).is_input() && (share.robot != all_of(graph, i) || !share.server.is_empty())) {
      refuse(operator_name(graph, i) + " is an input: give the robot all its rows and the server none");
    }
  }
}

Needs needs_of_side(const OperatorGraph& graph, std::span<const Share> shares, Side side) {
  const int count = static_cast<int>(shares.size());
  Needs needs;
  needs.lacks.resize(shares.size());
  const auto own = [&](int index) { return made_by(shares[as_index(index)], side); };
  // Until all are known, the lacks are the needed rows of operators that are not wholly available.
  const auto want = [&](int producer, Region rows) {
    if (own(producer).holds(rows)) return false;
    needs.lacks[as_index(producer)].push_back(rows);
    return true;
  };
  for (int user = 0; user < count; ++user) {
    if (own(user).is_empty()) continue;
    const std::vector<Operand>& operands = operator_at(graph, user).operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const int producer = operands[as_index(i)].producer;
      if (want(producer, needed(graph, operands[as_index(i)], own(user)))) needs.awaits.push_back({user, i, producer});
    }
  }
  if (side == Side::kRobot) {
    for (const int output : graph.outputs) want(output, all_of(graph, output));
  }
  for (int producer = 0; producer < count; ++producer) {
    std::vector<Region>& lacks = needs.lacks[as_index(producer)];
    if (lacks.empty()) continue;
    const Region others = made_by(shares[as_index(producer)], other(side));
    lacks = without(lacks, own(producer));
    for (const Region part : lacks) {
      if (others.holds(part)) continue;
      refuse(std::string("the ") + name_of(side) + " needs rows " + text(part) + " of " +
             operator_name(graph, producer) + " and computes " + text(own(producer)) + ", the " + name_of(other(side)) +
             " computes " + text(others) + ": assign every needed row to one of them");
    }
  }
  return needs;
}

// Returns the row after the first `count` rows of the regions.
std::int64_t end_of_first(std::int64_t count, const std::vector<Region>& regions) {
  for (const Region region : regions) {
    if (count <= region.size()) return region.begin + count;
    count -= region.size();
  }
  return regions.back().end;
}

// Finds the operators that the server computes as chunks arrive, and the next one.
void find_streamed(const OperatorGraph& graph, std::span<const Share> shares, const Needs& needs, Stream& stream) {
  std::size_t awaited = 0;
  int next = 0;
  for (; next < static_cast<int>(shares.size()); ++next) {
    if (shares[as_index(next)].server.is_empty() || operator_at(graph, next).is_input()) continue;
    if (!operator_at(graph, next).is_by_row()) break;
    bool from_inputs = true;
    for (; awaited < needs.awaits.size() && needs.awaits[awaited].user == next; ++awaited) {
      from_inputs = from_inputs && operator_at(graph, needs.awaits[awaited].producer).is_input();
    }
    if (!from_inputs) break;
    stream.operators.push_back(next);
  }
  if (!stream.operators.empty()) stream.next = next;
}

// Returns what the server can compute now. `reach` has the row after the available ones, by operator.
std::vector<OperatorRows> newly_possible(const OperatorGraph& graph, std::span<const Share> shares,
                                         const std::vector<int>& operators, std::vector<std::int64_t>& reach) {
  std::vector<OperatorRows> possible;
  for (const int index : operators) {
    const Region made = shares[as_index(index)].server;
    const auto is_possible = [&](std::int64_t end) {
      return std::ranges::all_of(operator_at(graph, index).operands, [&](const Operand& operand) {
        const Region rows = needed(graph, operand, {made.begin, end});
        return rows.is_empty() || rows.end <= reach[as_index(operand.producer)];
      });
    };
    const std::int64_t from = std::max(made.begin, reach[as_index(index)]);
    const std::int64_t to = last_that(from, made.end, is_possible);
    if (to == from) continue;
    reach[as_index(index)] = to;
    possible.push_back({index, {from, to}});
  }
  return possible;
}

}  // namespace

std::vector<Region> without(const std::vector<Region>& pieces, Region own) {
  std::vector<Region> parts;
  for (const Region piece : pieces) {
    if (own.is_empty()) {
      parts.push_back(piece);
      continue;
    }
    parts.push_back({piece.begin, std::min(piece.end, own.begin)});
    parts.push_back({std::max(piece.begin, own.end), piece.end});
  }
  std::erase_if(parts, [](Region part) { return part.is_empty(); });
  std::ranges::sort(parts, {}, &Region::begin);
  std::vector<Region> merged;
  for (const Region part : parts) {
    if (merged.empty() || part.begin > merged.back().end) {
      merged.push_back(part);
    } else {
      merged.back().end = std::max(merged.back().end, part.end);
    }
  }
  return merged;
}

std::int64_t rows_of(const std::vector<Region>& regions) noexcept {
  std::int64_t rows = 0;
  for (const Region region : regions) rows += region.size();
  return rows;
}

double message_bytes(const Operator& made, const std::vector<Region>& regions) noexcept {
  const auto bytes = static_cast<double>(made.bytes);
  if (made.is_state) return bytes * static_cast<double>(regions.size());
  return static_cast<double>(rows_of(regions)) / static_cast<double>(made.rows) * bytes;
}

std::array<Needs, 2> needs_of(const OperatorGraph& graph, std::span<const Share> shares) {
  check_shares(graph, shares);
  return {needs_of_side(graph, shares, Side::kRobot), needs_of_side(graph, shares, Side::kServer)};
}

Stream stream_of(const OperatorGraph& graph, std::span<const Share> shares, const Needs& needs, int chunks) {
  if (chunks < 1) refuse("an input is sent in " + std::to_string(chunks) + " chunks: give at least 1");
  Stream stream;
  std::vector<int> inputs;
  for (int i = 0; i < static_cast<int>(shares.size()); ++i) {
    if (operator_at(graph, i).is_input() && !needs.lacks[as_index(i)].empty()) inputs.push_back(i);
  }
  if (inputs.empty()) return stream;
  if (chunks > 1) find_streamed(graph, shares, needs, stream);
  std::vector<std::int64_t> reach(shares.size(), 0);
  for (const int input : inputs) {
    const std::vector<Region>& lacks = needs.lacks[as_index(input)];
    const std::int64_t rows = rows_of(lacks);
    const std::int64_t count = std::min<std::int64_t>(chunks, rows);
    std::int64_t begin = lacks.front().begin;
    for (std::int64_t chunk = 1; chunk <= count; ++chunk) {
      const std::int64_t there = rows * chunk / count;
      const std::int64_t end = end_of_first(there, lacks);
      stream.chunks.push_back({input, {}, rows - there, {}});
      for (const Region region : lacks) {
        const Region part = intersection(region, {begin, end});
        if (!part.is_empty()) stream.chunks.back().rows.push_back(part);
      }
      reach[as_index(input)] = end;
      stream.chunks.back().possible = newly_possible(graph, shares, stream.operators, reach);
      begin = end;
    }
  }
  return stream;
}

}  // namespace atl::plan
