// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "atoll/infer/operators/recipe.h"
#include "atoll/infer/regions.h"

// States of parts (Partial), by family. Callers have checked that the node sums over dimension `dim` of its operand 0.
// The functions return none for arguments that do not fit together.
namespace atl::infer::operators {

enum class Reduced { kSum, kMean, kMax, kMin, kNorm, kLogSumExp, kVariance, kDeviation };

/// A reduction over the dimensions `dims`; a variance is divided by the count less `correction`.
std::optional<Partial> reduction_states(const NodeView& view, int dim, Reduced kind, const Ints& dims,
                                        double correction = 0);

std::optional<Partial> softmax_states(const NodeView& view, int dim, bool is_log);

/// A normalisation of operand 0: over its dimensions from `first` on, with weights of these dimensions; or, if there
/// are groups, over groups of channels and all places, with a weight for each channel.
struct Normalisation {
  int first = 0;
  std::int64_t groups = 0;
  bool is_centred = true;  ///< otherwise it divides by the root of the mean square and subtracts nothing
  double epsilon = 0;
  std::optional<std::size_t> weight = {};  ///< index of the operand
  std::optional<std::size_t> bias = {};
};
std::optional<Partial> norm_states(const NodeView& view, int dim, const Normalisation& norm);

/// aten::linear over its last dimension.
std::optional<Partial> linear_states(const NodeView& view, int dim);

/// An adaptive mean pooling to a single row.
std::optional<Partial> mean_pool_states(const NodeView& view, int dim);

// Helpers that these share.

struct MergedMoments {
  int mean = 0;
  int variance = 0;
};
/// Merges states [parts, 2, ...] with the means and variances of parts that have the given shares of the elements (a
/// vector), by Chan, Golub and LeVeque ("Algorithms for computing the sample variance", 1983).
MergedMoments merged_moments(Recipe& recipe, int states, int shares);

/// The maximum over `dims`, clamped from below to stay finite (so that a part without weight gives 0 instead of NaN)
/// and, if `from_above`, from above; and the sum of exponentials relative to it: [2, ...].
int exponentials(Recipe& recipe, int tensor, const Ints& dims, bool from_above);

struct MergedExponentials {
  int most = 0;
  int sum = 0;
};
/// Merges states [parts, 2, ...].
MergedExponentials merged_exponentials(Recipe& recipe, int states);

/// A Partial of operand 0 alone, without rows in its result. `of.state(parts)` is the type of joined states, and
/// state_of(of, rows) and result_of(of, parts, rows) make the graphs.
template <typename Of>
Partial partial_by(const NodeView& view, int dim, const Of& of) {
  Partial partial;
  partial.rows = view.rows(0, dim);
  partial.state = of.state(1);
  partial.of_state = {{0, dim}};
  partial.state_calls = [of](std::int64_t rows) { return state_of(of, rows); };
  partial.result_calls = [of](std::int64_t parts, std::int64_t rows) { return result_of(of, parts, rows); };
  return partial;
}

/// `type` with `rows` along `dim`.
Tensor part_of(Tensor type, int dim, std::int64_t rows);

}  // namespace atl::infer::operators
