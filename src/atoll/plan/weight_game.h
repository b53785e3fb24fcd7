// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

namespace atl::plan {

/// Four amounts of at least 0.
using Amounts = std::array<double, 4>;

struct WeightGame {
  Amounts weights{};
  double value = 0;
};

/// Returns the weights, at least 0 and adding up to 1, that maximise the smallest weighted sum over all columns, and
/// that sum: a matrix game, solved as a linear program (Dantzig, "A proof of the equivalence of the programming problem
/// and the game problem", 1951) with four rows, by the simplex method. There must be a column. The weights are valid
/// despite rounding; the value is exact up to rounding.
WeightGame solve_weights(std::span<const Amounts> columns);

}  // namespace atl::plan
