// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/differential_evolution.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Vectors = std::vector<std::vector<double>>;

constexpr std::size_t kVectorsPerVariable = 15;
constexpr double kCrossover = 0.7;  // share of the variables that a trial takes from the mutant
constexpr int kMaxGenerations = 1000;

// Draws one vector in each of `count` equal parts of every variable's range, with the parts paired at random.
Vectors latin_hypercube(std::size_t count, std::size_t size, Random& random) {
  Vectors vectors(count, std::vector<double>(size));
  std::vector<std::size_t> parts(count);
  for (std::size_t k = 0; k < size; ++k) {
    std::iota(parts.begin(), parts.end(), std::size_t{0});
    for (std::size_t i = count; i > 1; --i) std::swap(parts[i - 1], parts[random.below(i)]);
    for (std::size_t i = 0; i < count; ++i) {
      vectors[i][k] = (static_cast<double>(parts[i]) + random.unit()) / static_cast<double>(count);
    }
  }
  return vectors;
}

bool is_settled(const std::vector<double>& values, double tolerance) {
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  double variance = 0;
  for (const double value : values) variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
  return std::sqrt(variance) <= tolerance * std::abs(mean);
}

// Draws two different members of the population other than `self`.
std::pair<std::size_t, std::size_t> two_others(std::size_t self, std::size_t count, Random& random) {
  std::size_t first = random.below(count - 1);
  if (first >= self) ++first;
  std::size_t second = random.below(count - 2);
  if (second >= std::min(self, first)) ++second;
  if (second >= std::max(self, first)) ++second;
  return {first, second};
}

void check_arguments(std::size_t size, const EvolutionOptions& options, const Vectors& starts) {
  if (size == 0) refuse("differential evolution has no variables: give at least 1");
  if (options.evaluations < 1) {
    refuse("differential evolution may evaluate " + std::to_string(options.evaluations) + " vectors: allow at least 1");
  }
  for (const std::vector<double>& start : starts) {
    if (start.size() == size) continue;
    refuse("a start of differential evolution has " + counted(start.size(), "variable") + ", not " +
           std::to_string(size));
  }
}

}  // namespace

Evolution differential_evolution(const std::function<double(std::span<const double>)>& value, std::size_t size,
                                 const EvolutionOptions& options, const Vectors& starts) {
  check_arguments(size, options, starts);
  Random random(options.seed, 1, Purpose::kShares);
  Vectors population = latin_hypercube(kVectorsPerVariable * size, size, random);
  std::copy_n(starts.begin(), std::min(starts.size(), population.size()), population.begin());
  std::vector<double> values(population.size(), HUGE_VAL);
  Evolution result;
  std::size_t best = 0;
  for (std::size_t i = 0; i < population.size() && result.evaluations < options.evaluations; ++i) {
    values[i] = value(population[i]);
    ++result.evaluations;
    if (values[i] < values[best]) best = i;
  }
  std::vector<double> trial;
  for (int generation = 0; generation < kMaxGenerations && result.evaluations < options.evaluations; ++generation) {
    const double weight = 0.5 + 0.5 * random.unit();  // of the difference of two vectors
    for (std::size_t i = 0; i < population.size() && result.evaluations < options.evaluations; ++i) {
      const auto [first, second] = two_others(i, population.size(), random);
      trial = population[i];
      const std::size_t always = random.below(size);
      for (std::size_t k = 0; k < size; ++k) {
        const bool is_crossed = random.unit() < kCrossover;
        if (!is_crossed && k != always) continue;
        trial[k] = population[best][k] + weight * (population[first][k] - population[second][k]);
        if (!(trial[k] >= 0 && trial[k] <= 1)) trial[k] = random.unit();
      }
      const double tried = value(trial);
      ++result.evaluations;
      if (tried > values[i]) continue;
      population[i] = trial;
      values[i] = tried;
      if (tried < values[best]) best = i;
    }
    result.is_converged = is_settled(values, options.tolerance);
    if (result.is_converged) break;
  }
  result.best = population[best];
  result.value = values[best];
  return result;
}

}  // namespace atl::plan
