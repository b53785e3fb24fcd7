// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace atl::plan {

struct EvolutionOptions {
  double tolerance = 0.01;               ///< stops when the values deviate by no more than this share of their mean
  std::int64_t evaluations = 1'000'000;  ///< limit on calls of the function, also within the first population
  std::uint64_t seed = 0;
};

struct Evolution {
  std::vector<double> best;
  double value = 0;
  std::int64_t evaluations = 0;
  bool is_converged = false;  ///< the values are within the tolerance
};

/// Searches for a vector of `size` variables in [0, 1] with a small value: Storn and Price, "Differential Evolution: a
/// simple and efficient heuristic for global optimization over continuous spaces" (1997), in the form best1bin and with
/// the defaults of SciPy's differential_evolution, but without its final polish. The first population is a Latin
/// hypercube, whose first vectors are replaced by `starts`. In each generation every vector is compared with a trial:
/// the best one plus a weighted difference of two others, in the variables that crossover picks, at least one;
/// variables that leave [0, 1] are drawn again. The better of both is kept at once. Equal arguments give equal results.
/// Throws Error(kInvalidArgument) for no variables, fewer than one evaluation, or starts of another size.
Evolution differential_evolution(const std::function<double(std::span<const double>)>& value, std::size_t size,
                                 const EvolutionOptions& options = {},
                                 const std::vector<std::vector<double>>& starts = {});

}  // namespace atl::plan
