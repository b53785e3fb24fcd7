// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layer_pipeline.h"

#include <gtest/gtest.h>

#include "atoll/plan/layer_search.h"
#include "atoll/plan/layer_stages.h"
#include "layer_cases.h"

namespace atl::plan {
namespace {

using test::any_layers;
using test::brute_seconds;
using test::Dice;
using test::even_layers;
using test::plain_seconds;

struct Seen {
  int feasible = 0;
  int infeasible = 0;
  int tied = 0;
  int recomputed = 0;
  int left_out = 0;
};

void expect_exact(const LayerRequest& request, Seen& seen) {
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

TEST(LayerPipeline, EqualsBruteForce) {
  Dice dice(41);
  Seen seen;
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
  Seen seen;
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    LayerRequest request = any_layers(dice, {10, 2, 5});
    if (request.recompute == LayerRecompute::kAuto) request.recompute = LayerRecompute::kNever;
    expect_exact(request, seen);
  }
  EXPECT_GT(seen.feasible, 60);
}

}  // namespace
}  // namespace atl::plan
