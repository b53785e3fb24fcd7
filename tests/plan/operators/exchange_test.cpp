// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/exchange.h"

#include <map>
#include <set>

#include "atoll/plan/operators/stages.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan {
namespace {

using test::any_graph;
using test::any_shares;
using test::Dice;
using test::RowNeeds;

using Rows = std::set<std::int64_t>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

Rows rows_in(const std::vector<Region>& regions) {
  Rows rows;
  for (const Region region : regions) {
    for (std::int64_t row = region.begin; row < region.end; ++row) EXPECT_TRUE(rows.insert(row).second);
  }
  return rows;
}

TEST(Exchange, SubtractsRegions) {
  EXPECT_EQ(without({{4, 9}, {0, 2}, {2, 3}, {8, 12}}, {}), (std::vector<Region>{{0, 3}, {4, 12}}));
  EXPECT_EQ(without({{0, 10}}, {3, 5}), (std::vector<Region>{{0, 3}, {5, 10}}));
  EXPECT_EQ(without({{0, 10}, {3, 3}}, {0, 10}), (std::vector<Region>{}));
  EXPECT_EQ(rows_of({{0, 3}, {5, 10}}), 8);
}

// Computes, row by row, what a side needs and does not compute.
TEST(Exchange, NeedsAreTheRowsThatLack) {
  Dice dice(401);
  for (int i = 0; i < 500; ++i) {
    const OperatorGraph graph = any_graph(dice, 15, RowNeeds::kAny);
    const auto shares = any_shares(dice, graph);
    const std::array<Needs, 2> needs = needs_of(graph, shares);
    for (const Side side : {Side::kRobot, Side::kServer}) {
      std::vector<Rows> lacks(shares.size());
      std::vector<Await> awaits;
      const auto want = [&](int producer, Region rows) {
        const Region own = made_by(shares[at(producer)], side);
        bool waits = false;
        for (std::int64_t row = rows.begin; row < rows.end; ++row) {
          if (row >= own.begin && row < own.end) continue;
          lacks[at(producer)].insert(row);
          waits = true;
        }
        return waits;
      };
      for (int user = 0; user < static_cast<int>(shares.size()); ++user) {
        const auto& operands = operator_at(graph, user).operands;
        for (int k = 0; k < static_cast<int>(operands.size()); ++k) {
          const Region made = made_by(shares[at(user)], side);
          const int producer = operands[at(k)].producer;
          const Region rows = rows_needed(operands[at(k)], made, operator_at(graph, producer).rows);
          if (want(producer, rows)) awaits.push_back({user, k, producer});
        }
      }
      if (side == Side::kRobot) {
        for (const int output : graph.outputs) want(output, {0, operator_at(graph, output).rows});
      }
      const Needs& found = needs[static_cast<std::size_t>(side)];
      ASSERT_EQ(found.awaits, awaits) << i;
      for (std::size_t k = 0; k < lacks.size(); ++k) ASSERT_EQ(rows_in(found.lacks[k]), lacks[k]) << i;
    }
  }
}

// Every row goes up once in order, and every operator is computed once in order, as soon as its rows are there and not
// before.
TEST(Exchange, StreamsComputeAllThatHasBecomePossible) {
  Dice dice(402);
  int streamed = 0;
  for (int i = 0; i < 800; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, RowNeeds::kAny);
    const auto shares = dice.chance(0.5) ? everything_on(Side::kServer, graph) : any_shares(dice, graph);
    const Needs needs = needs_of(graph, shares)[1];
    const int chunks = static_cast<int>(dice.integer(1, 6));
    const Stream stream = stream_of(graph, shares, needs, chunks);
    std::vector<Rows> there(shares.size());
    std::map<int, int> count;
    std::map<int, std::int64_t> least;
    std::map<int, std::int64_t> most;
    for (const Chunk& chunk : stream.chunks) {
      ++count[chunk.input];
      const auto size = static_cast<std::int64_t>(rows_in(chunk.rows).size());
      least[chunk.input] = std::min(least.try_emplace(chunk.input, size).first->second, size);
      most[chunk.input] = std::max(most[chunk.input], size);
      for (const std::int64_t row : rows_in(chunk.rows)) {
        if (!there[at(chunk.input)].empty()) {
          ASSERT_GT(row, *there[at(chunk.input)].rbegin());
        }
        there[at(chunk.input)].insert(row);
      }
      ASSERT_EQ(chunk.rows_after,
                rows_of(needs.lacks[at(chunk.input)]) - static_cast<std::int64_t>(there[at(chunk.input)].size()));
      const auto is_possible = [&](int index, Region made) {
        for (const Operand& operand : operator_at(graph, index).operands) {
          const Region rows = rows_needed(operand, made, operator_at(graph, operand.producer).rows);
          for (std::int64_t row = rows.begin; row < rows.end; ++row) {
            if (!there[at(operand.producer)].contains(row)) return false;
          }
        }
        return true;
      };
      for (const OperatorRows& possible : chunk.possible) {
        ASSERT_TRUE(is_possible(possible.index, possible.rows)) << i;
        Rows& made = there[at(possible.index)];
        ASSERT_EQ(possible.rows.begin, made.empty() ? shares[at(possible.index)].server.begin : *made.rbegin() + 1);
        for (std::int64_t row = possible.rows.begin; row < possible.rows.end; ++row) made.insert(row);
      }
      for (const int index : stream.operators) {
        const Region share = shares[at(index)].server;
        const auto next = share.begin + static_cast<std::int64_t>(there[at(index)].size());
        if (next < share.end) {
          ASSERT_FALSE(is_possible(index, {share.begin, next + 1})) << i;
        }
      }
    }
    for (const auto& [input, messages] : count) {
      ASSERT_EQ(there[at(input)], rows_in(needs.lacks[at(input)])) << i;
      ASSERT_EQ(messages, std::min<std::int64_t>(chunks, rows_of(needs.lacks[at(input)]))) << i;
      ASSERT_LE(most[input], least[input] + 1) << i;
    }
    for (const int index : stream.operators) {
      ASSERT_EQ(there[at(index)], rows_in({shares[at(index)].server})) << i;
      ASSERT_LT(index, stream.next);
      ++streamed;
    }
    if (chunks == 1) {
      ASSERT_TRUE(stream.operators.empty());
    }
  }
  EXPECT_GT(streamed, 500);
}

}  // namespace
}  // namespace atl::plan
