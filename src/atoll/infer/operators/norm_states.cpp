// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "atoll/infer/operators/states.h"

// Normalisations and softmax: each part makes the statistics of its rows, and applies those of all to its own.
namespace atl::infer::operators {
namespace {

// The part of a Normalisation that is kept after its NodeView is gone.
struct Norm {
  Tensor self;  // all rows
  int dim = 0;
  Normalisation rule;
  std::optional<Tensor> weight;
  std::optional<Tensor> bias;
  Dtype sums = Dtype::kFloat32;

  // The shape that separates the dimensions that are normalised over: [samples, groups, channels of a group,
  // places...].
  Shape viewed(std::int64_t rows) const {
    Shape shape = part_of(self, dim, rows).shape;
    if (rule.groups == 0) return shape;
    shape[1] /= rule.groups;
    shape.insert(shape.begin() + 1, rule.groups);
    return shape;
  }
  Ints dims() const {
    Ints normalised;
    const auto rank = static_cast<std::int64_t>(viewed(1).size());
    for (std::int64_t i = rule.groups == 0 ? rule.first : 2; i < rank; ++i) normalised.push_back(i);
    return normalised;
  }
  double count() const {
    double elements = 1;
    const Shape shape = viewed(self.shape[static_cast<std::size_t>(dim)]);
    for (const std::int64_t each : dims()) elements *= static_cast<double>(shape[static_cast<std::size_t>(each)]);
    return elements;
  }
  Tensor state(std::int64_t parts) const {
    return {sums, with_leading(rule.is_centred ? Shape{parts, 2} : Shape{parts}, with_ones(viewed(1), dims()))};
  }
  // The shape of a weight, to be broadcast against `viewed`.
  Shape weight_shape(std::int64_t rows) const {
    const Shape shape = viewed(rows);
    if (rule.groups == 0) return Shape(shape.begin() + rule.first, shape.end());
    Shape channels(shape.size(), 1);
    channels[1] = shape[1];
    channels[2] = shape[2];
    return channels;
  }
  // The weight as a part takes it.
  Tensor weight_of(const Tensor& whole, std::int64_t rows) const {
    return rule.groups == 0 ? part_of(whole, dim - rule.first, rows) : whole;
  }
};

Graph state_of(const Norm& of, std::int64_t rows) {
  Recipe recipe;
  const int part = recipe.input(part_of(of.self, of.dim, rows));
  const int x = recipe.reshape(recipe.to(part, of.sums), of.viewed(rows));
  int made = x;
  if (of.rule.is_centred) {
    const auto [mean, variance] = recipe.moments(x, of.dims());
    made = recipe.stack({mean, variance}, 0);
  } else {
    made = recipe.sum(recipe.mul(x, x), of.dims(), true, of.sums);
  }
  return recipe.finished(recipe.reshape(made, of.state(1).shape));
}

Graph result_of(const Norm& of, std::int64_t parts, std::int64_t rows) {
  Recipe recipe;
  const int states = recipe.input(of.state(parts));
  const int shares = recipe.input({of.sums, {parts}});
  const Tensor own = part_of(of.self, of.dim, rows);
  const int part = recipe.input(own);
  std::array<int, 2> weights{-1, -1};
  if (of.weight) weights[0] = recipe.input(of.weight_of(*of.weight, rows));
  if (of.bias) weights[1] = recipe.input(of.weight_of(*of.bias, rows));
  for (int& each : weights) {
    if (each >= 0) each = recipe.reshape(recipe.to(each, of.sums), of.weight_shape(rows));
  }
  int made = recipe.reshape(recipe.to(part, of.sums), of.viewed(rows));
  int spread = 0;
  if (of.rule.is_centred) {
    const MergedMoments merged = merged_moments(recipe, states, shares);
    made = recipe.sub(made, merged.mean);
    spread = merged.variance;
  } else {
    spread = recipe.div_number(recipe.sum(states, {0}, false, of.sums), of.count());
  }
  int scale = recipe.rsqrt(recipe.add_number(spread, of.rule.epsilon));
  if (of.rule.groups > 0 && weights[0] >= 0) {  // both are small
    scale = recipe.mul(scale, std::exchange(weights[0], -1));
  }
  made = recipe.mul(made, scale);
  if (weights[0] >= 0) made = recipe.mul(made, weights[0]);
  if (weights[1] >= 0) made = recipe.add(made, weights[1]);
  return recipe.finished(recipe.to(recipe.reshape(made, own.shape), own.dtype));
}

// Maxima and sums of exponentials over dimension `dim`.
struct Softmax {
  Tensor self;
  int dim = 0;
  Dtype output = Dtype::kFloat32;
  bool is_log = false;

  Dtype sums() const { return precise(output); }
  Tensor state(std::int64_t parts) const { return {sums(), with_leading({parts, 2}, part_of(self, dim, 1).shape)}; }
  // Converts first to the type of the result, as the operator does.
  int input(Recipe& recipe, std::int64_t rows) const {
    return recipe.to(recipe.to(recipe.input(part_of(self, dim, rows)), output), sums());
  }
};

Graph state_of(const Softmax& of, std::int64_t rows) {
  Recipe recipe;
  const int made = exponentials(recipe, of.input(recipe, rows), {of.dim}, false);
  return recipe.finished(recipe.reshape(made, of.state(1).shape));
}

Graph result_of(const Softmax& of, std::int64_t parts, std::int64_t rows) {
  Recipe recipe;
  const int states = recipe.input(of.state(parts));
  recipe.input({of.sums(), {parts}});
  const int x = of.input(recipe, rows);
  const MergedExponentials merged = merged_exponentials(recipe, states);
  const int above = recipe.sub(x, merged.most);
  const int made = of.is_log ? recipe.sub(above, recipe.log(merged.sum)) : recipe.div(recipe.exp(above), merged.sum);
  return recipe.finished(recipe.to(made, of.output));
}

}  // namespace

std::optional<Partial> norm_states(const NodeView& view, int dim, const Normalisation& norm) {
  Norm of{view.operand(0), dim, norm, {}, {}, precise(view.operand(0).dtype)};
  const Shape& shape = of.self.shape;
  if (!is_floating(of.self.dtype) || view.output() != of.self || shape.size() >= kMaxDims) return std::nullopt;
  const bool fits = norm.groups > 0 ? shape.size() > 2 && dim > 1 && shape[1] % norm.groups == 0
                                    : norm.first >= 0 && dim >= norm.first;
  if (!fits) return std::nullopt;
  std::vector<Partial::Taken> of_result{{0, dim}};
  const Shape expected = norm.groups > 0 ? Shape{shape[1]} : Shape(shape.begin() + norm.first, shape.end());
  for (const auto& [operand, type] : {std::pair(norm.weight, &of.weight), std::pair(norm.bias, &of.bias)}) {
    if (!operand) continue;
    *type = view.operand(*operand);
    if ((*type)->shape != expected || precise((*type)->dtype) != of.sums) return std::nullopt;
    of_result.push_back({*operand, norm.groups > 0 ? -1 : dim - norm.first});
  }
  Partial partial = partial_by(view, dim, of);
  partial.of_result = std::move(of_result);
  partial.output_dim = dim;
  return partial;
}

std::optional<Partial> softmax_states(const NodeView& view, int dim, bool is_log) {
  const Softmax of{view.operand(0), dim, view.output().dtype, is_log};
  if (view.operands() != 1 || view.output_shape() != of.self.shape || !is_floating(of.output)) return std::nullopt;
  Partial partial = partial_by(view, dim, of);
  partial.of_result = {{0, dim}};
  partial.output_dim = dim;
  return partial;
}

}  // namespace atl::infer::operators
