// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/pipeline.h"

#include <gtest/gtest.h>

#include <numeric>

#include "atoll/plan/layers/search.h"
#include "tests/plan/layers/cases.h"

namespace atl::plan {
namespace {

using test::any_layers;
using test::Dice;
using test::even_layers;
using test::plain_ties;

// Returns the seconds of ranges, item by item, by the model of docs/plan-layers.md; infinite if a device has no room,
// or if tied items are apart that must not be. `of` has the devices.
double plain_chunked(const LayerRequest& request, const LayerPipeline& of, const std::vector<std::size_t>& ends) {
  const std::size_t positions = of.stages.size();
  const auto v = static_cast<double>(request.chunks);
  std::vector<LayerStage> ranges;
  std::vector<double> seconds(positions, 0);
  std::vector<double> bytes(positions, 0);
  double fill = 0;
  for (std::size_t range = 0; range < ends.size(); ++range) {
    LayerStage stage = of.stages[range % positions];
    stage.begin = range == 0 ? 0 : ends[range - 1];
    stage.end = ends[range];
    double compute = 0;
    double accumulate = 0;
    double recomputed = 0;
    for (std::size_t i = stage.begin; i < stage.end; ++i) {
      const LayerItem& item = request.items[i];
      const LayerTime& time = item.times[stage.device].front();
      const bool again = stage.recompute && item.recompute_bytes;
      compute += time.forward + time.backward + (again ? time.forward : 0);
      accumulate += time.accumulate;
      bytes[range % positions] +=
          item.state_bytes() + stage.in_flight * (again ? *item.recompute_bytes : item.kept_bytes);
      if (again) recomputed = std::max(recomputed, item.kept_bytes);
    }
    bytes[range % positions] += recomputed;
    double way = 0;
    if (range + 1 < ends.size() && positions > 1) {
      const std::size_t next = of.stages[(range + 1) % positions].device;
      const LayerLink& link = request.links[stage.device * request.devices.size() + next];
      way = link.latency + link.seconds_per_byte * request.items[stage.end - 1].output_bytes;
    }
    seconds[range % positions] += request.transfers == LayerOverlap::kOverlapped ? std::max(compute + accumulate, way)
                                                                                 : compute + accumulate + 2 * way;
    fill += compute + 2 * way;
    ranges.push_back(stage);
  }
  for (const LayerTie& tie : request.ties) {
    std::vector<double> holders(positions, 0);
    for (std::size_t range = 0; range < ranges.size(); ++range) {
      const auto here = std::count_if(tie.items.begin(), tie.items.end(),
                                      [&](std::size_t i) { return ranges[range].begin <= i && i < ranges[range].end; });
      if (!tie.apart && here > 0 && here < static_cast<std::ptrdiff_t>(tie.items.size())) return HUGE_VAL;
      holders[range % positions] += static_cast<double>(here);
    }
    for (std::size_t k = 0; k < positions; ++k) bytes[k] -= std::max(0.0, holders[k] - 1) * tie.state_bytes();
  }
  for (std::size_t k = 0; k < positions; ++k) {
    if (bytes[k] > request.devices[of.stages[k].device].memory_bytes * (1 - request.margin) + 1e-9) return HUGE_VAL;
  }
  const double longest = *std::max_element(seconds.begin(), seconds.end());
  const double ties = positions > 1 ? plain_ties(request, ranges) : 0;
  return (static_cast<double>(of.micro_batches) - 1 / v) * longest + fill / v + ties;
}

double brute(const LayerRequest& request, const LayerPipeline& of, std::vector<std::size_t>& ends, std::size_t ranges) {
  const std::size_t begin = ends.empty() ? 0 : ends.back();
  if (ends.size() + 1 == ranges) {
    if (begin >= request.items.size()) return HUGE_VAL;
    ends.push_back(request.items.size());
    const double seconds = plain_chunked(request, of, ends);
    ends.pop_back();
    return seconds;
  }
  double best = HUGE_VAL;
  for (std::size_t end = begin + 1; end < request.items.size(); ++end) {
    ends.push_back(end);
    best = std::min(best, brute(request, of, ends, ranges));
    ends.pop_back();
  }
  return best;
}

struct SeenChunks {
  int found = 0;
  int best = 0;
  int none = 0;
  int missed = 0;
  double worst = 1;
};

void expect_good(const LayerRequest& request, SeenChunks& seen) {
  const LayerCosts costs(request, 1);
  const std::optional<LayerPipeline> whole = best_pipeline(costs, counts_of(request), request.batch, request.leave_out);
  if (!whole) return;
  const std::size_t ranges = whole->stages.size() * static_cast<std::size_t>(request.chunks);
  const std::optional<LayerPipeline> found = chunked(costs, *whole);
  std::vector<std::size_t> ends;
  const double best = ranges > request.items.size() ? HUGE_VAL : brute(request, *whole, ends, ranges);
  if (!found) {
    ++(best < HUGE_VAL ? seen.missed : seen.none);
    return;
  }
  ASSERT_EQ(found->stages.size(), ranges);
  for (std::size_t range = 0; range < ranges; ++range) {
    const LayerStage& stage = found->stages[range];
    const LayerStage& device = whole->stages[range % whole->stages.size()];
    ASSERT_EQ(stage.begin, ends.empty() ? 0 : ends.back());
    ASSERT_LT(stage.begin, stage.end);
    ASSERT_EQ(stage.device, device.device);
    ASSERT_EQ(stage.number, device.number);
    ASSERT_EQ(stage.recompute, device.recompute);
    ends.push_back(stage.end);
  }
  ASSERT_EQ(ends.back(), request.items.size());
  ASSERT_NEAR(found->seconds, plain_chunked(request, *whole, ends), 1e-9 * (1 + best)) << "and so it fits";
  ASSERT_GE(found->seconds, best * (1 - 1e-9));
  ++seen.found;
  seen.best += found->seconds <= best * (1 + 1e-9) ? 1 : 0;
  if (best > 0) seen.worst = std::max(seen.worst, found->seconds / best);
}

TEST(LayerChunks, AreNearBruteForce) {
  Dice dice(43);
  SeenChunks seen;
  for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    LayerRequest request = any_layers(dice, {9, 3, 3});
    request.schedule = LayerSchedule::kInterleaved;
    request.chunks = dice.integer(2, 3);
    expect_good(request, seen);
  }
  EXPECT_GT(seen.found, 500);
  EXPECT_GT(seen.none, 100);
  EXPECT_GT(seen.best, 0.9 * seen.found) << seen.best << " of " << seen.found;
  EXPECT_LT(seen.missed, 0.02 * seen.found) << seen.missed;
  EXPECT_LT(seen.worst, 1.5) << seen.worst;
}

// A head of three blocks' worth: no range is longer, and so how long ranges are at most says little of devices.
TEST(LayerChunks, BalanceDevicesAndNotRanges) {
  LayerRequest request = even_layers(7, {1}, {2}, 8);
  request.items.back().times[0] = {{1, 1.5, 1.5}};
  request.schedule = LayerSchedule::kInterleaved;
  const LayerCosts costs(request, 1);
  const std::optional<LayerPipeline> whole = best_pipeline(costs, counts_of(request), 8, false);
  ASSERT_TRUE(whole.has_value());
  const std::optional<LayerPipeline> found = chunked(costs, *whole);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->period, 5);
  EXPECT_EQ(found->fill, 9);
  EXPECT_EQ(found->seconds, 7.5 * 5 + 4.5);
}

TEST(LayerChunks, OfManyDevicesTakeAsLongAsIsEstimated) {
  LayerRequest request = even_layers(512, {1, 2}, {8, 8}, 64);
  request.schedule = LayerSchedule::kInterleaved;
  request.chunks = 4;
  const LayerCosts costs(request, 1);
  const std::optional<LayerPipeline> whole = best_pipeline(costs, counts_of(request), 64, false);
  ASSERT_TRUE(whole.has_value());
  const std::optional<LayerPipeline> found = chunked(costs, *whole);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->stages.size(), 64u);
  EXPECT_LT(found->seconds, 1.05 * whole->seconds);
}

// The first item is longer than all others together, so that no division of the items after it matters at first.
TEST(LayerChunks, OfAsManyItemsAsThereCanBe) {
  LayerRequest request = even_layers(2048, {1}, {512}, 8);
  request.items.front().times[0] = {{1, 2000, 2000}};
  request.schedule = LayerSchedule::kInterleaved;
  LayerPipeline whole;
  whole.micro_batches = 8;
  whole.stages.resize(512);
  for (LayerStage& stage : whole.stages) stage.cap_bytes = HUGE_VAL;
  const std::optional<LayerPipeline> found = chunked(LayerCosts(request, 1), whole);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->stages.size(), 1024u);
  EXPECT_LT(found->period, 4000 + 20);
}

TEST(LayerChunks, NeedAnItemForEachRange) {
  LayerRequest request = even_layers(7, {1}, {2}, 8);
  request.schedule = LayerSchedule::kInterleaved;
  request.chunks = 4;
  const LayerCosts costs(request, 1);
  const std::optional<LayerPipeline> whole = best_pipeline(costs, counts_of(request), 8, false);
  ASSERT_TRUE(whole.has_value());
  EXPECT_FALSE(chunked(costs, *whole).has_value());
}

}  // namespace
}  // namespace atl::plan
