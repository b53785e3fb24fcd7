// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/membership.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::rank_of;
using test::refusal;
using Set = std::vector<std::size_t>;

const Communication kFree = [](std::span<const std::size_t>) { return 0.0; };

Network two_islands(double bridge) {
  Network network;
  network.gradient_bytes = 100e6;
  network.islands = {0, 0, 1};
  network.inside_bytes_per_second = {10e9, 5e9};
  network.bridge_bytes_per_second = bridge;
  network.bridge_latency = 0.001;
  return network;
}

std::vector<Rank> three_ranks() {
  return {rank_of("a", Cost::affine(0, 0.001)), rank_of("b", Cost::affine(0, 0.001)),
          rank_of("c", Cost::affine(0, 0.004))};
}

nlohmann::json json_of(const std::vector<Rank>& ranks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Rank& rank : ranks) {
    list.push_back({{"name", rank.name}, {"cost", nlohmann::json::parse(rank.cost.to_json())}});
  }
  return list;
}

TEST(Membership, TheNetworkCostsWhatTheHeaderSays) {
  Network network = two_islands(1e9);
  const auto seconds = [&](const Set& set) { return communication_of(network, 3)(set); };
  EXPECT_EQ(seconds({0}), 0);
  EXPECT_DOUBLE_EQ(seconds({0, 1}), 0.01);
  EXPECT_DOUBLE_EQ(seconds({1, 2}), 0.102);
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2}), 0.112);
  network.overlap = 0.75;
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2}), 0.028);
}

// Two good devices are faster alone than with a slow one behind a slow bridge, as in the paper's 2G + 1M.
// Proves P-8.
TEST(Membership, ADeviceThatCostsMoreThanItBringsIsLeftOut) {
  const auto ranks = three_ranks();
  const Membership slow = membership(ranks, 256, communication_of(two_islands(1e9), 3));
  EXPECT_EQ(slow.best, (Set{0, 1}));
  EXPECT_NEAR(slow.best_step, 0.138, 1e-12);
  EXPECT_NEAR(*slow.all_step, 0.114 + 0.112, 1e-12);
  EXPECT_EQ(slow.advice[0], "keep rank 0 (a): without it a step is 35.8 % longer than with all");
  EXPECT_EQ(slow.advice[2], "leave out rank 2 (c): without it a step is 38.9 % shorter than with all");
  EXPECT_EQ(slow.advice[3], "best: rank 0 (a), rank 1 (b), 0.138 s per step, 38.9 % shorter than with all");

  const Membership fast = membership(ranks, 256, communication_of(two_islands(1e12), 3));
  EXPECT_EQ(fast.best, (Set{0, 1, 2}));
  EXPECT_EQ(fast.advice[3].find("best: all ranks"), 0U);
}

TEST(Membership, EqualsBruteForceOverSetsAndFindsThePrefix) {
  Dice dice(71);
  for (int i = 0; i < 60; ++i) {
    std::vector<Rank> ranks;
    for (std::int64_t k = dice.integer(1, 6); k > 0; --k) ranks.push_back(rank_of("", test::any_cost(dice)));
    std::map<Set, double> table;
    for (std::size_t bits = 1; bits < std::size_t{1} << ranks.size(); ++bits) {
      Set set;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if ((bits >> rank & 1) != 0) set.push_back(rank);
      }
      table[set] = dice.real(0, 20);
    }
    double best = HUGE_VAL;
    for (const auto& [set, seconds] : table) {
      std::vector<Rank> members;
      for (const std::size_t rank : set) members.push_back(ranks[rank]);
      best = std::min(best, threshold(members, 40).seconds + seconds);
    }
    const Membership result = membership(ranks, 40, communication_of(table));
    ASSERT_EQ(result.best_step, best);
    ASSERT_TRUE(result.exact);
  }
}

TEST(Membership, LooksAtTheFastestOfManyRanks) {
  std::vector<Rank> ranks;
  for (int k = 0; k < 20; ++k) ranks.push_back(rank_of("", Cost::affine(k % 2 == 0 ? 0.001 : 0.5, 0.001)));
  const Membership result = membership(ranks, 400, kFree);
  EXPECT_FALSE(result.exact);
  EXPECT_EQ(result.best, (Set{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}));
  EXPECT_EQ(result.without.size(), 20U);
}

// An island in the middle of the order by speed, which is not a candidate otherwise.
TEST(Membership, LooksAtTheSetsOfATableWhateverTheirNumber) {
  std::vector<Rank> ranks;
  for (int k = 0; k < 20; ++k) ranks.push_back(rank_of("", Cost::affine(0, 0.001 + 0.0001 * k)));
  nlohmann::json all = nlohmann::json::array();
  for (int k = 0; k < 20; ++k) all.push_back(k);
  nlohmann::json request{{"batch", 400}, {"ranks", json_of(ranks)}};
  request["table"] = {{{"ranks", {7, 3, 11}}, {"seconds", 0.001}}, {{"ranks", all}, {"seconds", 1}}};
  const Membership result = membership_from_json(request.dump());
  EXPECT_EQ(result.best, (Set{3, 7, 11}));
  EXPECT_TRUE(result.exact);
  EXPECT_GT(*result.all_step, 1);
}

TEST(Membership, KnowsWhichRanksTheBatchNeeds) {
  std::vector<Rank> ranks = three_ranks();
  for (Rank& rank : ranks) rank.bounds.most = 100;
  const Membership result = membership(ranks, 256, kFree);
  EXPECT_EQ(result.best, (Set{0, 1, 2}));
  EXPECT_EQ(result.advice[1], "keep rank 1 (b): the batch does not fit the others alone");
  for (Rank& rank : ranks) rank.bounds = {200, 300, 1};
  const Membership small = membership(ranks, 256, kFree);
  EXPECT_FALSE(small.all_step.has_value());
  EXPECT_EQ(small.best, Set{0});
  EXPECT_EQ(small.advice[0].find("keep rank 0 (a): it is in the best set"), 0U);
  EXPECT_EQ(small.advice[1].find("leave out rank 1 (b): it is not in the best set"), 0U);
  EXPECT_NE(refusal([&] { membership(ranks, 128, kFree); }).find("at least 600 samples"), std::string::npos);
  EXPECT_TRUE(membership(std::vector<Rank>{ranks[0]}, 256, kFree).without[0] == std::nullopt);
}

TEST(Membership, EqualStepsPreferFewerRanks) {
  const std::vector<Rank> ranks{rank_of("a", Cost::affine(1, 0), 0), rank_of("b", Cost::affine(1, 0), 0)};
  EXPECT_EQ(membership(ranks, 8, kFree).best, Set{0});
}

TEST(Membership, ReadsAndWritesJson) {
  const std::string ranks = json_of(three_ranks()).dump();
  const std::string network = R"("network": {"gradient_bytes": 1e8, "islands": [0, 0, 1],
      "inside_bytes_per_second": [1e10, 5e9], "bridge_bytes_per_second": 1e9, "bridge_latency": 0.001})";
  const auto text = [&](const std::string& more) { return R"({"batch": 256, "ranks": )" + ranks + ", " + more + "}"; };
  const Membership result = membership_from_json(text(network));
  EXPECT_EQ(result.best, (Set{0, 1}));
  const auto value = nlohmann::json::parse(result.to_json());
  EXPECT_EQ(value["best"], (Set{0, 1}));
  EXPECT_EQ(value["without"].size(), 3U);
  const Membership table =
      membership_from_json(text(R"("table": [{"ranks": [2], "seconds": 0}, {"ranks": [1, 0], "seconds": 1}])"));
  EXPECT_EQ(table.best, Set{2});
  EXPECT_FALSE(table.all_step.has_value());
  const auto refused = [&](const std::string& more) { return refusal([&] { membership_from_json(text(more)); }); };
  EXPECT_NE(refused(R"("table": [{"ranks": [3], "seconds": 0}])").find("rank 3, but the number of ranks is 3"),
            std::string::npos);
  EXPECT_NE(refused(R"("table": [{"ranks": [1, 2, 1], "seconds": 0}])").find("rank 1 twice"), std::string::npos);
  EXPECT_NE(refused(R"("table": [])").find("no set of ranks"), std::string::npos);
  EXPECT_NE(refused(R"("network": {"gradient_bytes": 1, "islands": [0], "inside_bytes_per_second": [1]})")
                .find("1 ranks have an island, but there are 3"),
            std::string::npos);
  EXPECT_NE(refused(R"("network": {"gradient_bytes": 1, "islands": [0, 0, 1], "inside_bytes_per_second": [1]})")
                .find("island 1 has no rate"),
            std::string::npos);
  EXPECT_NE(refused(R"("network": {"gradient_bytes": 1, "islands": [0, 0, 1], "inside_bytes_per_second": [1, 1]})")
                .find("the bridge's rate is 0"),
            std::string::npos);
}

}  // namespace
}  // namespace atl::plan
