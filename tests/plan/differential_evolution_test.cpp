// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/differential_evolution.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;

double bowl(std::span<const double> x) {
  double sum = 1;
  for (const double value : x) sum += (value - 0.3) * (value - 0.3);
  return sum;
}

// Many local minima; the least is 0, at 0.4.
double ripples(std::span<const double> x) {
  double sum = 0;
  for (const double value : x) {
    const double z = 10 * (value - 0.4);
    sum += z * z - 10 * std::cos(2 * M_PI * z) + 10;
  }
  return sum;
}

TEST(DifferentialEvolution, FindsMinima) {
  EvolutionOptions options;
  options.tolerance = 1e-9;
  const Evolution smooth = differential_evolution(bowl, 3, options);
  EXPECT_TRUE(smooth.is_converged);
  for (const double value : smooth.best) EXPECT_NEAR(value, 0.3, 1e-3);
  EXPECT_NEAR(smooth.value, 1, 1e-6);
  const Evolution rough = differential_evolution(ripples, 3, options);
  for (const double value : rough.best) EXPECT_NEAR(value, 0.4, 1e-3);
  EXPECT_EQ(rough.value, ripples(rough.best));
}

TEST(DifferentialEvolution, TriesVectorsInsideOnlyAndNoMoreThanItMay) {
  EvolutionOptions options;
  options.evaluations = 777;
  options.tolerance = 0;
  std::int64_t calls = 0;
  double least = HUGE_VAL;
  // Small at a corner, where mutants leave the range.
  const Evolution found = differential_evolution(
      [&](std::span<const double> x) {
        ++calls;
        for (const double value : x) EXPECT_TRUE(value >= 0 && value <= 1) << value;
        const double value = x[0] - x[1] - x[3];
        least = std::min(least, value);
        return value;
      },
      4, options);
  EXPECT_EQ(calls, 777);
  EXPECT_EQ(found.evaluations, 777);
  EXPECT_FALSE(found.is_converged);
  EXPECT_EQ(found.value, least);
  EXPECT_LT(found.value, -1.9);
}

TEST(DifferentialEvolution, TakesItsStarts) {
  EvolutionOptions options;
  options.evaluations = 2;
  const std::vector<std::vector<double>> starts{{0.9, 0.9}, {0.3, 0.3}};
  const Evolution found = differential_evolution(bowl, 2, options, starts);
  EXPECT_EQ(found.best, starts[1]);
  EXPECT_EQ(found.value, 1);
}

TEST(DifferentialEvolution, IsAFunctionOfItsSeed) {
  EvolutionOptions options;
  options.evaluations = 200;
  const Evolution first = differential_evolution(ripples, 4, options);
  EXPECT_EQ(differential_evolution(ripples, 4, options).best, first.best);
  options.seed = 1;
  EXPECT_NE(differential_evolution(ripples, 4, options).best, first.best);
}

TEST(DifferentialEvolution, RefusesWhatItCannotUse) {
  EXPECT_NE(refusal([] { differential_evolution(bowl, 0); }).find("no variables"), std::string::npos);
  EvolutionOptions options;
  options.evaluations = 0;
  EXPECT_NE(refusal([&] { differential_evolution(bowl, 1, options); }).find("0 vectors"), std::string::npos);
  const std::vector<std::vector<double>> short_start{{0.5}};
  EXPECT_NE(refusal([&] { differential_evolution(bowl, 2, {}, short_start); }).find("1 variable"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
