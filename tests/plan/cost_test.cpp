// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan_cases.h"

namespace atl::plan {
namespace {

using test::any_cost;
using test::Dice;
using test::refusal;

TEST(Cost, ShapesGiveTheirFormulas) {
  EXPECT_DOUBLE_EQ(Cost::affine(2, 0.5).seconds(8), 6);
  EXPECT_DOUBLE_EQ(Cost::saturating(1, 0.5, 10).seconds(4), 6);
  EXPECT_DOUBLE_EQ(Cost::saturating(1, 0.5, 10).seconds(20), 11);
  const Cost stairs = Cost::staircase(8, 1, 0.25);
  EXPECT_DOUBLE_EQ(stairs.seconds(1), 3);
  EXPECT_DOUBLE_EQ(stairs.seconds(8), 3);
  EXPECT_DOUBLE_EQ(stairs.seconds(9), 6);
  EXPECT_DOUBLE_EQ(Cost::affine(2, 0.5).scaled(3).seconds(8), 18);
  EXPECT_EQ(Cost::affine(2, 0.5).seconds(0), 0) << "an empty rank computes nothing";
}

TEST(Cost, TablesGoOnBelowBetweenAndBeyondTheirPoints) {
  const Cost table = Cost::table({{16, 4}, {8, 3}, {32, 3.5}, {64, 8}});  // 3.5 is below what 16 samples took
  EXPECT_DOUBLE_EQ(table.seconds(8), 3);
  EXPECT_DOUBLE_EQ(table.seconds(12), 3.5);
  EXPECT_DOUBLE_EQ(table.seconds(24), 4);
  EXPECT_DOUBLE_EQ(table.seconds(32), 4);
  EXPECT_DOUBLE_EQ(table.seconds(96), 12);
  EXPECT_DOUBLE_EQ(table.seconds(4), 2.5);  // the first segment's slope, intercept 2
  // A first segment whose line would cut the axis below zero is proportional instead.
  EXPECT_DOUBLE_EQ(Cost::table({{10, 1}, {20, 9}}).seconds(5), 0.5);
  EXPECT_DOUBLE_EQ(Cost::table({{10, 1}}).seconds(40), 4);
}

TEST(Cost, NeverFallsAndInvertsExactly) {
  Dice dice(1);
  for (int i = 0; i < 3000; ++i) {
    const Cost cost = any_cost(dice);
    double before = cost.seconds(0);
    for (std::int64_t batch = 1; batch <= 40; ++batch) {
      const double now = cost.seconds(batch);
      ASSERT_GE(now, before) << cost.to_json() << " at " << batch;
      before = now;
    }
    const double limit = dice.chance(0.5) ? cost.seconds(dice.integer(0, 40)) : dice.real(0, 80);
    const std::int64_t cap = dice.integer(0, 40);
    std::int64_t most = -1;
    while (most < cap && cost.seconds(most + 1) <= limit) ++most;
    ASSERT_EQ(cost.most_within(limit, cap), most) << cost.to_json() << " within " << limit << ", cap " << cap;
  }
}

TEST(Cost, InvertsLargeBatches) {
  for (const double per_sample : {1e-12, 1e-3, 7.0}) {
    const Cost cost = Cost::affine(1e3, per_sample);
    for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{123'456'789}, kUnbounded - 1}) {
      const std::int64_t most = cost.most_within(cost.seconds(batch), kUnbounded);
      EXPECT_GE(most, batch);
      EXPECT_LE(cost.seconds(most), cost.seconds(batch));
      if (most < kUnbounded) {
        EXPECT_GT(cost.seconds(most + 1), cost.seconds(batch));
      }
    }
  }
}

// Simulates a step bucket by bucket: a collective starts when its gradients are ready and the one before is done.
double step_by_bucket(double compute, double forward_share, const std::vector<Bucket>& buckets) {
  const double forward = forward_share * compute;
  double done = 0;
  for (const Bucket& bucket : buckets) {
    done = std::max(done, forward + bucket.ready * (compute - forward)) + bucket.seconds;
  }
  return std::max(done, compute);
}

TEST(Cost, OverlapEqualsTheStepByStepRecursion) {
  Dice dice(2);
  for (int i = 0; i < 5000; ++i) {
    const Cost compute = any_cost(dice).overlapped(0, {});
    const double forward_share = dice.real(0, 1);
    std::vector<Bucket> buckets;
    for (std::int64_t k = dice.integer(0, 8); k > 0; --k) {
      buckets.push_back({dice.chance(0.2) ? 0.5 : dice.real(0, 1), dice.real(0, 12)});
    }
    const Cost cost = compute.overlapped(forward_share, buckets);
    const std::int64_t batch = dice.integer(0, 30);
    const double expected = step_by_bucket(compute.seconds(batch), forward_share, buckets);
    ASSERT_NEAR(cost.seconds(batch), expected, 1e-12 * expected) << cost.to_json() << " at " << batch;
  }
}

TEST(Cost, AnEmptyRankStillWaitsForCollectives) {
  const Cost cost = Cost::affine(1, 1).overlapped(0.3, {{0.5, 2}, {1, 3}});
  EXPECT_DOUBLE_EQ(cost.seconds(0), 5);
  EXPECT_EQ(cost.most_within(4.9, 10), -1);
  EXPECT_EQ(cost.compute_seconds(0), 0);
}

TEST(Cost, KeepsItselfAsJson) {
  Dice dice(3);
  for (int i = 0; i < 500; ++i) {
    const Cost cost = any_cost(dice);
    const Cost again = Cost::from_json(cost.to_json());
    ASSERT_EQ(again, cost) << cost.to_json();
    ASSERT_EQ(again.to_json(), cost.to_json());
  }
}

TEST(Cost, RefusesInvalidTimes) {
  const double nan = std::nan("");
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, nan, infinite}) {
    EXPECT_NE(refusal([&] { Cost::affine(wrong, 1); }).find("fixed time"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost::affine(1, wrong); }).find("per sample"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost::saturating(1, 1, wrong); }).find("knee"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost::staircase(2, wrong, 1); }).find("launch"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost::table({{1, wrong}}); }).find("table"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost::table({{wrong, 1}}); }).find("table"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost().scaled(wrong); }).find("scaled"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost().overlapped(wrong, {}); }).find("forward"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost().overlapped(0.5, {{0.5, wrong}}); }).find("bucket"), std::string::npos);
    EXPECT_NE(refusal([&] { Cost().overlapped(0.5, {{wrong, 1}}); }).find("bucket"), std::string::npos);
  }
  EXPECT_NE(refusal([] { Cost::staircase(0, 1, 1); }).find("step"), std::string::npos);
  EXPECT_NE(refusal([] { Cost::table({}); }).find("no points"), std::string::npos);
  EXPECT_NE(refusal([] { Cost().scaled(0); }).find("scaled"), std::string::npos);
  EXPECT_NE(refusal([] { Cost().seconds(-1); }).find("-1 samples"), std::string::npos);
}

TEST(Cost, NamesWhatIsWrongInJson) {
  const auto refused = [](const char* text) { return refusal([&] { Cost::from_json(text); }); };
  EXPECT_NE(refused("{").find("not JSON"), std::string::npos);
  EXPECT_NE(refused("[1]").find("object"), std::string::npos);
  EXPECT_NE(refused(R"({"shape": "cubic"})").find("give one of affine"), std::string::npos);
  EXPECT_NE(refused(R"({"shape": "affine"})").find("lacks \"per_sample\""), std::string::npos);
  EXPECT_NE(refused(R"({"shape": "affine", "per_sample": "1"})").find("not a number"), std::string::npos);
  EXPECT_NE(refused(R"({"shape": "affine", "per_sample": 1, "knee": 3})").find("unknown key \"knee\""),
            std::string::npos);
  EXPECT_NE(refused(R"({"shape": "table", "points": [[1, 2, 3]]})").find("not a list of pairs"), std::string::npos);
  EXPECT_NE(refused(R"({"shape": "affine", "per_sample": 1, "overlap": {"buckets": []}})").find("forward_share"),
            std::string::npos);
}

TEST(Fit, FindsTheParametersOfExactMeasurements) {
  std::vector<Point> points;
  for (const double batch : {4, 8, 16, 32, 64}) points.push_back({batch, 0.01 + 0.002 * batch});
  const Fit affine = fit_affine(points);
  EXPECT_LT(affine.error, 1e-9);
  EXPECT_NEAR(affine.cost.seconds(100), 0.21, 1e-9);
  EXPECT_STREQ(fit(points).cost.shape(), "affine");
}

TEST(Fit, NeverGivesNegativeParameters) {
  EXPECT_DOUBLE_EQ(fit_affine({{10, 1}, {20, 9}}).cost.seconds(1), fit_affine({{10, 1}, {20, 9}}).cost.seconds(2) / 2);
  const Cost falling = fit_affine({{10, 9}, {20, 1}}).cost;
  EXPECT_DOUBLE_EQ(falling.seconds(1), falling.seconds(1000));
  Dice dice(4);
  for (int i = 0; i < 300; ++i) {
    std::vector<Point> points;
    for (std::int64_t k = dice.integer(1, 6); k > 0; --k) {
      points.push_back({static_cast<double>(dice.integer(1, 50)), dice.real(0.1, 5)});
    }
    const Fit best = fit_affine(points);
    for (int other = 0; other < 30; ++other) {  // no other line is nearer
      const Cost line = Cost::affine(dice.real(0, 3), dice.real(0, 0.3));
      double sum = 0;
      for (const Point& point : points) {
        sum += std::pow(line.seconds(static_cast<std::int64_t>(point.batch)) / point.seconds - 1, 2);
      }
      ASSERT_LE(best.error, std::sqrt(sum / static_cast<double>(points.size())) + 1e-9);
    }
  }
}

TEST(Fit, ChoosesTheSimplestShapeThatDescribesThePoints) {
  const Cost knee = Cost::saturating(0.5, 0.1, 24);
  std::vector<Point> points;
  for (const std::int64_t batch : {4, 8, 16, 32, 64, 128}) {
    points.push_back({static_cast<double>(batch), knee.seconds(batch)});
  }
  const Fit saturating = fit(points);
  EXPECT_STREQ(saturating.cost.shape(), "saturating");
  EXPECT_NEAR(saturating.cost.seconds(12), knee.seconds(12), 0.01 * knee.seconds(12));
  EXPECT_NEAR(saturating.cost.seconds(96), knee.seconds(96), 0.01 * knee.seconds(96));

  const Fit stairs = fit({{8, 1}, {16, 1.1}, {24, 3}, {32, 3.1}, {40, 9}, {48, 9.5}});
  EXPECT_STREQ(stairs.cost.shape(), "table");
  EXPECT_LT(stairs.error, 1e-9);
  EXPECT_STREQ(fit({{8, 2}}).cost.shape(), "affine");
  EXPECT_DOUBLE_EQ(fit({{8, 2}}).cost.seconds(16), 4);
}

TEST(Fit, RefusesInvalidMeasurements) {
  EXPECT_NE(refusal([] { fit({}); }).find("no points"), std::string::npos);
  EXPECT_NE(refusal([] { fit({{8, 0}}); }).find("[8, 0]"), std::string::npos);
  EXPECT_NE(refusal([] { fit_affine({{0, 1}}); }).find("[0, 1]"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
