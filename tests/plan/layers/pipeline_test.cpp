// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/pipeline.h"

#include <gtest/gtest.h>

#include "atoll/plan/layers/search.h"
#include "tests/plan/layers/cases.h"

namespace atl::plan {
namespace {

using test::any_layers;
using test::brute_seconds;
using test::Dice;
using test::even_layers;
using test::plain_seconds;

struct SeenPipelines {
  int feasible = 0;
  int infeasible = 0;
  int tied = 0;
  int recomputed = 0;
  int left_out = 0;
};

void expect_exact(const LayerRequest& request, SeenPipelines& seen) {
  const LayerCosts costs(request, 1);
  const std::vector<std::int64_t> counts = counts_of(request);
  const std::int64_t m = request.batch;
  const double best = brute_seconds(request, counts, m);
  const std::optional<LayerPipeline> found = best_pipeline(costs, counts, m, request.leave_out);
  ASSERT_EQ(found.has_value(), best < HUGE_VAL);
  if (request.ties.empty()) {
    ASSERT_EQ(pipeline_fits(costs, counts, m, request.leave_out), best < HUGE_VAL);
  }
  if (!found) {
    ++seen.infeasible;
    return;
  }
  const double small = 1e-9 * (1 + best);
  ASSERT_NEAR(found->seconds, best, small);
  ASSERT_NEAR(plain_seconds(request, found->stages, m), found->seconds, small);
  ASSERT_LE(pipeline_bound(costs, counts, m), best + small);
  std::size_t begin = 0;
  std::vector<std::int64_t> used(counts.size(), 0);
  for (const LayerStage& stage : found->stages) {
    ASSERT_EQ(stage.begin, begin);
    ASSERT_LT(stage.begin, stage.end);
    ASSERT_LE(++used[stage.device], counts[stage.device]);
    ASSERT_TRUE(stage.fits());
    begin = stage.end;
    seen.recomputed += stage.recompute ? 1 : 0;
  }
  ASSERT_EQ(begin, request.items.size());
  ASSERT_TRUE(request.leave_out || used == counts);
  // A cutoff is sharp: nothing takes less, and something takes hardly more.
  ASSERT_FALSE(best_pipeline(costs, counts, m, request.leave_out, best * (1 - 1e-9)).has_value());
  const auto again = best_pipeline(costs, counts, m, request.leave_out, best * (1 + 1e-9) + 1e-12);
  ASSERT_TRUE(again.has_value());
  ASSERT_NEAR(again->seconds, best, small);
  ++seen.feasible;
  seen.tied += found->ties > 0 ? 1 : 0;
  seen.left_out += used != counts ? 1 : 0;
}

// Proves P-5.
TEST(LayerPipeline, EqualsBruteForce) {
  Dice dice(41);
  SeenPipelines seen;
  for (int i = 0; i < 6000 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    expect_exact(any_layers(dice), seen);
  }
  EXPECT_GT(seen.feasible, 3000);
  EXPECT_GT(seen.infeasible, 500);
  EXPECT_GT(seen.tied, 200);
  EXPECT_GT(seen.recomputed, 300);
  EXPECT_GT(seen.left_out, 200);
}

TEST(LayerPipeline, EqualsBruteForceWithMoreItems) {
  Dice dice(42);
  SeenPipelines seen;
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    LayerRequest request = any_layers(dice, {10, 2, 5});
    if (request.recompute == LayerRecompute::kAuto) request.recompute = LayerRecompute::kNever;
    expect_exact(request, seen);
  }
  EXPECT_GT(seen.feasible, 60);
}

// 131 items on 16 devices of 4 classes: the exact search extends few states when it matters, because cuts are between
// what the stages after and before can reach.
TEST(LayerPipeline, LooksAtFewStatesOfLargeInstances) {
  LayerRequest request = even_layers(131, {1, 1.07, 1.6, 2.6}, {4, 4, 4, 4}, 64);
  for (LayerItem& item : request.items) item.kept_bytes = 1;
  for (std::size_t c = 0; c < 4; ++c) request.devices[c].memory_bytes = c % 2 == 0 ? 120 : 60;
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) request.links[a * 4 + b] = {a == b ? 0.001 : 0.01, 0};
  }
  const LayerCosts costs(request, 1);
  const std::vector<std::int64_t> counts = counts_of(request);
  const std::optional<LayerPipeline> found = best_pipeline(costs, counts, 64, false);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->stages.size(), 16u);
  EXPECT_LT(found->seconds / pipeline_bound(costs, counts, 64), 1.3);
  const TieCase free = tie_cases(costs, counts).front();
  StageSearch tight(costs, counts, 64, 0, false);
  ASSERT_TRUE(tight.cheapest(free, found->period, HUGE_VAL).has_value());
  StageSearch loose(costs, counts, 64, 0, false);
  ASSERT_TRUE(loose.cheapest(free, HUGE_VAL, HUGE_VAL).has_value());
  EXPECT_LT(tight.extended(), 1000000);
  EXPECT_LT(loose.extended(), 60000000);
  StageSearch below(costs, counts, 64, 0, false);
  ASSERT_FALSE(below.cheapest(free, pipeline_bound(costs, counts, 64) / 100, HUGE_VAL).has_value());
  EXPECT_EQ(below.extended(), 0);
}

TEST(LayerPipeline, RefusesMoreStatesThanItCanHold) {
  const LayerRequest request = even_layers(40, std::vector<double>(20, 1), std::vector<std::int64_t>(20, 1), 4);
  const LayerCosts costs(request, 1);
  const std::string why = test::refusal([&] { best_pipeline(costs, std::vector<std::int64_t>(20, 1), 4, false); });
  EXPECT_NE(why.find("more than 2^24 states"), std::string::npos) << why;
}

}  // namespace
}  // namespace atl::plan
