// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/min_cut.h"

#include <cmath>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::refusal;

struct Edge {
  int from;
  int to;
  double capacity;
};

struct CutCase {
  int nodes = 0;
  std::vector<Edge> edges;

  FlowNetwork network() const {
    FlowNetwork result;
    for (int i = 0; i < nodes; ++i) result.add_node();
    for (const Edge& edge : edges) result.add_edge(edge.from, edge.to, edge.capacity);
    return result;
  }
  double value(unsigned side) const {
    double sum = 0;
    for (const Edge& edge : edges) {
      if ((side >> edge.from & 1) != 0 && (side >> edge.to & 1) == 0) sum += edge.capacity;
    }
    return sum;
  }
};

CutCase any_case(Dice& dice, int most_nodes, bool whole_numbers) {
  CutCase result;
  result.nodes = static_cast<int>(dice.integer(2, most_nodes));
  for (std::int64_t i = dice.integer(0, 4 * result.nodes); i > 0; --i) {
    const int from = static_cast<int>(dice.integer(0, result.nodes - 1));
    const int to = static_cast<int>(dice.integer(0, result.nodes - 1));
    const double amount = whole_numbers ? static_cast<double>(dice.integer(0, 5)) : std::exp(dice.real(-12, 3));
    result.edges.push_back({from, to, dice.chance(0.1) ? kUncut : amount});
  }
  return result;
}

unsigned side_of(const MinCut& cut) {
  unsigned side = 0;
  for (std::size_t i = 0; i < cut.source_side.size(); ++i) side |= cut.source_side[i] ? 1U << i : 0U;
  return side;
}

// Node 0 is the source, the last one the sink. Also returns the intersection of all minimum cuts' source sides.
std::pair<double, unsigned> brute_force(const CutCase& instance) {
  double least = kUncut;
  unsigned smallest = 0;
  const unsigned inner = 1U << (instance.nodes - 2);
  for (unsigned bits = 0; bits < inner; ++bits) {
    const unsigned side = bits << 1 | 1;
    const double value = instance.value(side);
    if (value > least) continue;
    smallest = value < least ? side : smallest & side;
    least = value;
  }
  return {least, smallest};
}

TEST(MinCut, EqualsBruteForce) {
  Dice dice(71);
  int uncut = 0;
  for (int i = 0; i < 4000; ++i) {
    const CutCase instance = any_case(dice, 10, true);
    const auto [value, smallest] = brute_force(instance);
    FlowNetwork network = instance.network();
    MinCut cut;
    const std::string message = refusal([&] { cut = network.min_cut(0, instance.nodes - 1); });
    if (value == kUncut) {
      ++uncut;
      ASSERT_NE(message.find("a path of uncut edges"), std::string::npos) << i;
      continue;
    }
    ASSERT_EQ(message, "");
    ASSERT_EQ(cut.value, value) << i;
    ASSERT_EQ(side_of(cut), smallest) << i;
  }
  EXPECT_GT(uncut, 50);
  EXPECT_LT(uncut, 1000);
}

TEST(MinCut, EqualsBruteForceForRealCapacities) {
  Dice dice(72);
  for (int i = 0; i < 2000; ++i) {
    const CutCase instance = any_case(dice, 10, false);
    const double value = brute_force(instance).first;
    if (value == kUncut) continue;
    const MinCut cut = instance.network().min_cut(0, instance.nodes - 1);
    ASSERT_NEAR(cut.value, value, 1e-9 * value + 1e-11) << i;
    ASSERT_NEAR(instance.value(side_of(cut)), cut.value, 1e-12) << i;
  }
}

// A flow within the capacities that is as large as a cut proves both.
void expect_maximum(const CutCase& instance, FlowNetwork& network) {
  const int sink = instance.nodes - 1;
  const double value = network.min_cut(0, sink).value;
  const std::vector<double> flow = network.maximum_flow();
  std::vector<double> surplus(static_cast<std::size_t>(instance.nodes), 0);
  for (std::size_t i = 0; i < flow.size(); ++i) {
    ASSERT_GE(flow[i], 0);
    ASSERT_LE(flow[i], instance.edges[i].capacity + 1e-9);
    surplus[static_cast<std::size_t>(instance.edges[i].to)] += flow[i];
    surplus[static_cast<std::size_t>(instance.edges[i].from)] -= flow[i];
  }
  for (int node = 1; node < sink; ++node) {
    ASSERT_NEAR(surplus[static_cast<std::size_t>(node)], 0, 1e-9 * (1 + value)) << "node " << node;
  }
  ASSERT_NEAR(surplus.back(), value, 1e-9 * (1 + value));
}

TEST(MinCut, TheFlowIsAsLargeAsTheCut) {
  Dice dice(73);
  for (int i = 0; i < 1000; ++i) {
    CutCase instance = any_case(dice, 40, false);
    for (Edge& edge : instance.edges) edge.capacity = std::min(edge.capacity, 100.0);
    FlowNetwork network = instance.network();
    ASSERT_NO_FATAL_FAILURE(expect_maximum(instance, network)) << i;
  }
}

// Like a planner's graph: a long chain with shortcuts, most edges of which lead to a neighbour.
TEST(MinCut, LargeGraphs) {
  Dice dice(74);
  CutCase instance;
  instance.nodes = 2000;
  for (int i = 0; i + 1 < instance.nodes; ++i) {
    instance.edges.push_back({i, i + 1, dice.real(0, 10)});
    instance.edges.push_back({i + 1, i, kUncut});
    instance.edges.push_back({0, i + 1, dice.real(0, 0.1)});
    instance.edges.push_back({i, instance.nodes - 1, dice.real(0, 0.02)});
    const int near = std::min(i + static_cast<int>(dice.integer(1, 30)), instance.nodes - 1);
    instance.edges.push_back({i, near, dice.real(0, 1)});
  }
  FlowNetwork network = instance.network();
  expect_maximum(instance, network);
}

TEST(MinCut, IsFoundAgainAfterChanges) {
  Dice dice(75);
  for (int i = 0; i < 300; ++i) {
    CutCase instance = any_case(dice, 9, true);
    FlowNetwork network = instance.network();
    for (int round = 0; round < 4; ++round) {
      const auto [value, smallest] = brute_force(instance);
      if (value != kUncut) {
        const MinCut cut = network.min_cut(0, instance.nodes - 1);
        ASSERT_EQ(cut.value, value);
        ASSERT_EQ(side_of(cut), smallest);
        if (dice.chance(0.5)) network.maximum_flow();
      }
      for (std::size_t edge = 0; edge < instance.edges.size(); ++edge) {
        instance.edges[edge].capacity = static_cast<double>(dice.integer(0, 5));
        network.set_capacity(static_cast<int>(edge), instance.edges[edge].capacity);
      }
    }
  }
}

TEST(MinCut, NothingToCut) {
  FlowNetwork network;
  network.add_node();
  network.add_node();
  EXPECT_EQ(network.min_cut(0, 1).value, 0);
  EXPECT_EQ(network.min_cut(0, 1).source_side, (std::vector<bool>{true, false}));
  EXPECT_TRUE(network.maximum_flow().empty());
}

TEST(MinCut, NamesWhatIsWrong) {
  FlowNetwork network;
  network.add_node();
  network.add_node();
  EXPECT_NE(refusal([&] { network.add_edge(0, 2, 1); }).find("node 2"), std::string::npos);
  EXPECT_NE(refusal([&] { network.add_edge(0, 1, -1); }).find("capacity -1"), std::string::npos);
  EXPECT_NE(refusal([&] { network.add_edge(0, 1, std::nan("")); }).find("capacity nan"), std::string::npos);
  EXPECT_NE(refusal([&] { network.min_cut(1, 1); }).find("nodes 1 and 1"), std::string::npos);
  EXPECT_NE(refusal([&] { network.min_cut(0, 7); }).find("nodes 0 and 7"), std::string::npos);
  network.add_edge(0, 1, kUncut);
  EXPECT_NE(refusal([&] { network.min_cut(0, 1); }).find("uncut"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
