// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using Counts = std::vector<std::int64_t>;
using Pipelines = std::vector<Counts>;  // sorted

std::int64_t sum_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

Pipelines spread(const Placement& placement) {
  Pipelines pipelines;
  for (const PlacementPart& part : placement) {
    pipelines.insert(pipelines.end(), static_cast<std::size_t>(part.times), part.counts);
  }
  std::sort(pipelines.begin(), pipelines.end());
  return pipelines;
}

// Device by device to each pipeline in turn.
std::set<Pipelines> every(const Counts& counts, std::size_t replicas, std::int64_t most_devices) {
  std::set<Pipelines> found;
  Pipelines pipelines(replicas, Counts(counts.size(), 0));
  const std::function<void(std::size_t, std::int64_t)> deal = [&](std::size_t device, std::int64_t left) {
    if (device == counts.size()) {
      Pipelines sorted = pipelines;
      std::sort(sorted.begin(), sorted.end());
      const bool fits = std::all_of(sorted.begin(), sorted.end(), [&](const Counts& each) {
        return sum_of(each) >= 1 && sum_of(each) <= most_devices;
      });
      if (fits) found.insert(sorted);
      return;
    }
    if (left == 0) {
      deal(device + 1, device + 1 < counts.size() ? counts[device + 1] : 0);
      return;
    }
    for (Counts& pipeline : pipelines) {
      ++pipeline[device];
      deal(device, left - 1);
      --pipeline[device];
    }
  };
  deal(0, counts[0]);
  return found;
}

TEST(LayerPlacements, AreAllOnce) {
  test::Dice dice(61);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    Counts counts;
    for (std::int64_t c = dice.integer(1, 3); c > 0; --c) counts.push_back(dice.integer(0, 3));
    const std::int64_t replicas = dice.integer(1, 4);
    const std::int64_t most_devices = dice.integer(1, 6);
    const Placements found = placements(counts, replicas, most_devices, 100000);
    ASSERT_TRUE(found.complete);
    std::set<Pipelines> seen;
    for (const Placement& each : found.all) ASSERT_TRUE(seen.insert(spread(each)).second);
    ASSERT_EQ(seen, every(counts, static_cast<std::size_t>(replicas), most_devices));
  }
}

TEST(LayerPlacements, BeginEvenlyAndStopAtTheirLimit) {
  const Placements paper = placements({8, 8}, 8, 130, 3);
  ASSERT_EQ(paper.all.size(), 3u);
  EXPECT_FALSE(paper.complete);
  EXPECT_EQ(paper.all[0], (Placement{{{1, 1}, 8}}));
  EXPECT_EQ(paper.all[1], (Placement{{{2, 0}, 4}, {{0, 2}, 4}}));
  EXPECT_TRUE(placements({8, 8}, 8, 130, 100000).complete);
  // Thousands of devices: what is found within the limit, soon.
  const Placements many = placements({2048, 2048}, 2048, 130, 50);
  ASSERT_FALSE(many.all.empty());
  EXPECT_EQ(many.all[0], (Placement{{{1, 1}, 2048}}));
  EXPECT_FALSE(many.complete);
  EXPECT_TRUE(placements({2}, 3, 5, 10).all.empty());
  EXPECT_TRUE(placements({4}, 2, 1, 10).all.empty());
}

}  // namespace
}  // namespace atl::plan
