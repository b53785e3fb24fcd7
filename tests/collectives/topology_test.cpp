// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/topology.h"

#include <gtest/gtest.h>

#include <cmath>

#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

TEST(Topology, OrdersIslandsByLowestRank) {
  const Topology topology = Topology::from_labels({"z", "a", "z", "m", "a"});
  EXPECT_EQ(topology.size, 5);
  EXPECT_EQ(topology.islands, (std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}}));
  EXPECT_EQ(topology.island_of, (std::vector<int>{0, 1, 0, 2, 1}));
  EXPECT_EQ(topology.labels, (std::vector<std::string>{"z", "a", "m"}));
  EXPECT_EQ(topology.uplinks, (std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(topology.flat_reduce);
  EXPECT_TRUE(topology.same_island(1, 4));
  EXPECT_FALSE(topology.same_island(0, 1));
}

TEST(Topology, AddsUpStatedUplinks) {
  const Topology topology = Topology::from_labels({"a", "b", "a", "b"}, {1.5, 0, 2.5, 10}, true);
  EXPECT_EQ(topology.uplinks, (std::vector<double>{4, 10}));
  EXPECT_TRUE(topology.flat_reduce);
  EXPECT_EQ(Topology::from_labels({"a", "b"}, {0, -1}).uplinks, (std::vector<double>{1, 1}));
}

TEST(Topology, RefusesWhatHasNoMeaning) {
  const auto refusal = [](const std::vector<std::string>& labels, const std::vector<double>& uplink) -> std::string {
    try {
      Topology::from_labels(labels, uplink);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({}, {}), "");
  EXPECT_NE(refusal({"a", "b"}, {1}), "");
  EXPECT_NE(refusal({"a", "b"}, {1, std::nan("")}).find("rank 1"), std::string::npos);
  EXPECT_NE(refusal({"a", "b", "b"}, {1, 0, 0}).find("\"b\""), std::string::npos);
}

}  // namespace
}  // namespace atl::collectives
