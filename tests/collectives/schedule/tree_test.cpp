// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/tree.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/collectives/schedule/cases.h"

namespace atl::collectives {
namespace {

Tree make(const std::vector<int>& sizes, test::Order order = test::Order::kMixed) {
  return Tree::of_islands(Topology::from_labels(test::make_labels(sizes, order)));
}

TEST(ScheduleTree, OrdersRanksByIsland) {
  const Tree tree = Tree::of_islands(Topology::from_labels({"x", "y", "x", "y", "y"}));
  std::vector<int> order;
  for (int position = 0; position < 5; ++position) order.push_back(tree.rank_at(position));
  EXPECT_EQ(order, (std::vector<int>{0, 2, 1, 3, 4}));
  EXPECT_EQ(tree.node_count(), 3);
  EXPECT_EQ(tree.path(3), (std::vector<int>{0, 2}));
  EXPECT_EQ(make({1, 1, 1}).node_count(), 1);  // single-rank islands need no nodes of their own
  EXPECT_EQ(make({4}).node_count(), 1);
  EXPECT_EQ(Tree::flat(100).node_count(), 1);
}

TEST(ScheduleTree, NodesCoverTheirRanksWithoutGaps) {
  for (const auto& sizes : std::vector<std::vector<int>>{
           {1}, {5, 2}, {16}, {17}, {300}, {512}, {40, 1, 20}, std::vector<int>(300, 1), std::vector<int>(40, 2)}) {
    const Tree tree = make(sizes);
    for (int index = 0; index < tree.node_count(); ++index) {
      const Tree::Node& node = tree.node(index);
      if (node.holds_ranks()) {
        EXPECT_LE(node.size(), Tree::kFanOut);
        EXPECT_GE(node.size(), 1);
        continue;
      }
      EXPECT_LE(node.children.size(), static_cast<std::size_t>(Tree::kFanOut));
      int position = node.begin;
      for (const int child : node.children) {
        EXPECT_EQ(tree.node(child).begin, position);
        EXPECT_EQ(tree.node(child).parent, index);
        position = tree.node(child).end;
      }
      EXPECT_EQ(position, node.end);
    }
    for (int rank = 0; rank < static_cast<int>(tree.node(0).size()); ++rank) {
      EXPECT_EQ(tree.rank_at(tree.position_of(rank)), rank);
      const Tree::Node& leaf = tree.node(tree.path(rank).back());
      EXPECT_TRUE(leaf.holds_ranks() && leaf.begin <= tree.position_of(rank) && tree.position_of(rank) < leaf.end);
    }
  }
}

// Over the rounds of all owners of one subtree, the leads of another take equal turns.
TEST(ScheduleTree, LeadsTakeTurns) {
  for (const auto& sizes : std::vector<std::vector<int>>{{2, 3}, {4, 4}, {1, 5}, {5, 1}, {4, 6}}) {
    const Tree tree = make(sizes, test::Order::kBlocks);
    const Tree::Node& home = tree.node(1);
    const Tree::Node& other = tree.node(2);
    std::map<int, int> turns;
    for (int owner = home.begin; owner < home.end; ++owner) {
      EXPECT_EQ(tree.lead_of_child(tree.node(0), home, owner, {}), owner);
      for (std::uint64_t round = 0; round < 60; ++round)
        ++turns[tree.lead_of_child(tree.node(0), other, owner, {round, false})];
    }
    EXPECT_EQ(turns.size(), static_cast<std::size_t>(other.size()));
    for (const auto& [lead, count] : turns) {
      EXPECT_TRUE(lead >= other.begin && lead < other.end);
      EXPECT_EQ(count, 60 * home.size() / other.size());
    }
    std::set<int> leads;
    for (std::uint64_t round = 0; round < 10; ++round)
      leads.insert(tree.lead_of_child(tree.node(0), other, home.begin, {round, true}));
    EXPECT_EQ(leads.size(), static_cast<std::size_t>(other.size()));
  }
}

TEST(ScheduleTree, LargeTreesKeepToFewPartners) {
  const Tree tree = make({512});
  const Tree::Node& root = tree.node(0);
  ASSERT_EQ(root.children.size(), 2u);
  for (int lead = 0; lead < 256; lead += 17) {
    for (std::uint64_t round = 0; round < 5; ++round) {
      EXPECT_EQ(tree.lead_of_child(root, tree.node(root.children[1]), lead, {round, false}), lead + 256);
    }
  }
  const Tree uneven = make({30, 10}, test::Order::kBlocks);  // 30 ranks are two nodes of 15
  std::set<int> partners;
  for (std::uint64_t round = 0; round < 50; ++round)
    partners.insert(uneven.lead_of_child(uneven.node(0), uneven.node(1), 32, {round, false}));
  EXPECT_EQ(partners, (std::set<int>{2, 12, 22}));
}

}  // namespace
}  // namespace atl::collectives
