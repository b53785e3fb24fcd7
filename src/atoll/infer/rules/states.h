// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "atoll/infer/regions.h"
#include "atoll/infer/rules/recipe.h"

// States of parts, by family (Partial). Whoever calls these has seen that the node sums over dimension `dim` of its
// operand 0. They give none for what does not fit together.
namespace atl::infer {

enum class Reduced { kSum, kMean, kMax, kMin, kNorm, kLogSumExp, kVariance, kDeviation };

/// Over the dimensions `dims`; a variance is divided by the count less `correction`.
std::optional<Partial> reduction_states(const NodeView& view, int dim, Reduced kind, const Ints& dims,
                                        double correction = 0);

std::optional<Partial> softmax_states(const NodeView& view, int dim, bool is_log);

/// A normalisation of operand 0: over its dimensions from `first` on, with weights of these; or where there are groups
/// over groups of channels and all places, with a weight for each channel.
struct Normalisation {
  int first = 0;
  std::int64_t groups = 0;
  bool is_centred = true;  ///< else the mean of squares serves, and nothing is subtracted
  double epsilon = 0;
  std::optional<std::size_t> weight = {};  ///< operands
  std::optional<std::size_t> bias = {};
};
std::optional<Partial> norm_states(const NodeView& view, int dim, const Normalisation& norm);

/// aten::linear over its last dimension.
std::optional<Partial> linear_states(const NodeView& view, int dim);

/// An adaptive mean that makes one row of all.
std::optional<Partial> mean_pool_states(const NodeView& view, int dim);

// What these share.

struct MergedMoments {
  int mean = 0;
  int variance = 0;
};
/// Of states [parts, 2, ...] with means and variances of shares of the elements (a vector), as Chan, Golub and LeVeque
/// merge them ("Algorithms for computing the sample variance", 1983).
MergedMoments merged_moments(Recipe& recipe, int states, int shares);

/// The maximum over `dims`, kept finite from below (so that a part without weight makes 0, and no NaN) and, where
/// `from_above`, from above; and the sum of exponentials less it: [2, ...].
int exponentials(Recipe& recipe, int tensor, const Ints& dims, bool from_above);

struct MergedExponentials {
  int most = 0;
  int sum = 0;
};
/// Of states [parts, 2, ...].
MergedExponentials merged_exponentials(Recipe& recipe, int states);

/// Has `partial` make its graphs by state_of(of, rows) and result_of(of, parts, rows).
template <typename Of>
void set_calls(Partial& partial, const Of& of) {
  partial.state_calls = [of](std::int64_t rows) { return state_of(of, rows); };
  partial.result_calls = [of](std::int64_t parts, std::int64_t rows) { return result_of(of, parts, rows); };
}

/// `type` with `rows` along `dim`.
Tensor part_of(Tensor type, int dim, std::int64_t rows);

}  // namespace atl::infer
