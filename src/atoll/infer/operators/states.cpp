// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/states.h"

#include <limits>
#include <utility>

namespace atl::infer::operators {

Tensor part_of(Tensor type, int dim, std::int64_t rows) {
  type.shape.at(static_cast<std::size_t>(dim)) = rows;
  return type;
}

MergedMoments merged_moments(Recipe& recipe, int states, int shares) {
  const Dtype dtype = recipe.type(states).dtype;
  const int means = recipe.select(states, 1, 0);
  const int variances = recipe.select(states, 1, 1);
  Shape by_part(recipe.shape(means).size(), 1);
  by_part.front() = recipe.shape(means).front();
  const int weights = recipe.reshape(shares, by_part);
  const int first = recipe.select(means, 0, 0);
  const int beside = recipe.sum(recipe.mul(recipe.sub(means, first), weights), {0}, false, dtype);
  const int mean = recipe.add(first, beside);
  const int off = recipe.sub(means, mean);
  const int spread = recipe.add(variances, recipe.mul(off, off));
  return {mean, recipe.sum(recipe.mul(spread, weights), {0}, false, dtype)};
}

int exponentials(Recipe& recipe, int tensor, const Ints& dims, bool from_above) {
  const Dtype dtype = recipe.type(tensor).dtype;
  const double highest =
      dtype == Dtype::kFloat64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
  const int most = recipe.clamp(recipe.extreme("amax", tensor, dims, true), -highest,
                                from_above ? std::optional(highest) : std::nullopt);
  const int sum = recipe.sum(recipe.exp(recipe.sub(tensor, most)), dims, true, dtype);
  return recipe.stack({most, sum}, 0);
}

MergedExponentials merged_exponentials(Recipe& recipe, int states) {
  const int each = recipe.select(states, 1, 0);
  const int sums = recipe.select(states, 1, 1);
  const int most = recipe.extreme("amax", each, {0}, false);
  const int scaled = recipe.mul(sums, recipe.exp(recipe.sub(each, most)));
  return {most, recipe.sum(scaled, {0}, false, recipe.type(states).dtype)};
}

}  // namespace atl::infer::operators
