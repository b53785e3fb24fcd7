// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/operators/states.h"

// Each part reduces its own rows, and the results are reduced again.
namespace atl::infer::operators {
namespace {

struct StateReduction {
  Reduced kind;
  Tensor self;  // all rows
  Tensor output;
  int dim;
  Ints dims;
  double correction;
  Dtype sums;  // the type of states

  bool is_pair() const {
    return kind == Reduced::kLogSumExp || kind == Reduced::kVariance || kind == Reduced::kDeviation;
  }
  Tensor state(std::int64_t parts) const {
    return {sums, with_leading(is_pair() ? Shape{parts, 2} : Shape{parts}, with_ones(self.shape, dims))};
  }
  // The number of elements in one result.
  double count() const {
    double elements = 1;
    for (const std::int64_t each : dims) elements *= static_cast<double>(self.shape[static_cast<std::size_t>(each)]);
    return elements;
  }
};

Graph state_of(const StateReduction& of, std::int64_t rows) {
  Recipe recipe;
  const int x = recipe.input(part_of(of.self, of.dim, rows));
  int made = x;
  switch (of.kind) {
    case Reduced::kSum:
    case Reduced::kMean: made = recipe.sum(x, of.dims, true, of.sums); break;
    case Reduced::kMax: made = recipe.extreme("amax", x, of.dims, true); break;
    case Reduced::kMin: made = recipe.extreme("amin", x, of.dims, true); break;
    case Reduced::kNorm: {
      const int exact = recipe.to(x, of.sums);
      made = recipe.sum(recipe.mul(exact, exact), of.dims, true, of.sums);
      break;
    }
    case Reduced::kLogSumExp: made = exponentials(recipe, recipe.to(x, of.sums), of.dims, true); break;
    case Reduced::kVariance:
    case Reduced::kDeviation: {
      const auto [mean, variance] = recipe.moments(recipe.to(x, of.sums), of.dims);
      made = recipe.stack({mean, variance}, 0);
      break;
    }
  }
  return recipe.finished(recipe.reshape(made, of.state(1).shape));
}

Graph result_of(const StateReduction& of, std::int64_t parts, std::int64_t /*rows*/) {
  Recipe recipe;
  const int states = recipe.input(of.state(parts));
  const int shares = recipe.input({is_floating(of.sums) ? precise(of.sums) : Dtype::kFloat64, {parts}});
  int made = states;
  switch (of.kind) {
    case Reduced::kSum: made = recipe.sum(states, {0}, false, of.sums); break;
    case Reduced::kMean: made = recipe.div_number(recipe.sum(states, {0}, false, of.sums), of.count()); break;
    case Reduced::kMax: made = recipe.extreme("amax", states, {0}, false); break;
    case Reduced::kMin: made = recipe.extreme("amin", states, {0}, false); break;
    case Reduced::kNorm: made = recipe.sqrt(recipe.sum(states, {0}, false, of.sums)); break;
    case Reduced::kLogSumExp: {
      const MergedExponentials merged = merged_exponentials(recipe, states);
      made = recipe.add(merged.most, recipe.log(merged.sum));
      break;
    }
    case Reduced::kVariance:
    case Reduced::kDeviation: {
      const int squares = recipe.mul_number(merged_moments(recipe, states, shares).variance, of.count());
      made = recipe.div_number(squares, std::max(0.0, of.count() - of.correction));
      if (of.kind == Reduced::kDeviation) made = recipe.sqrt(made);
      break;
    }
  }
  return recipe.finished(recipe.reshape(recipe.to(made, of.output.dtype), of.output.shape));
}

}  // namespace

std::optional<Partial> reduction_states(const NodeView& view, int dim, Reduced kind, const Ints& dims,
                                        double correction) {
  StateReduction of{kind, view.operand(0), view.output(), dim, dims, correction, precise(view.output().dtype)};
  const bool keeps_type = kind == Reduced::kMax || kind == Reduced::kMin;
  if (keeps_type) of.sums = of.self.dtype;
  // PyTorch's own call sums squares in double: with less precision, digits would be lost where the mean is large.
  if (kind == Reduced::kVariance || kind == Reduced::kDeviation) of.sums = Dtype::kFloat64;
  if (kind == Reduced::kSum && !is_floating(of.output.dtype))
    of.sums = of.output.dtype;  // wraps around as the operator does
  const bool fits = keeps_type               ? of.output.dtype == of.self.dtype
                    : kind == Reduced::kSum  ? of.output.dtype != Dtype::kBool
                    : kind == Reduced::kMean ? is_floating(of.output.dtype)
                                             : is_floating(of.self.dtype) && of.output.dtype == of.self.dtype;
  const Shape kept = with_ones(of.self.shape, dims);
  if (!fits || of.output.elements() != Tensor{of.output.dtype, kept}.elements()) return std::nullopt;
  return partial_by(view, dim, of);
}

}  // namespace atl::infer::operators
