// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/states.h"

// Products over a part of the contracted dimension, which add up to the whole; and means of parts.
namespace atl::infer::operators {
namespace {

struct Linear {
  Tensor input;
  Tensor weight;
  std::optional<Tensor> bias;
  Tensor output;

  Dtype sums() const { return precise(output.dtype); }
  Tensor state(std::int64_t parts) const { return {sums(), with_leading({parts}, output.shape)}; }
  int dim() const { return static_cast<int>(input.shape.size()) - 1; }
};

Graph state_of(const Linear& of, std::int64_t rows) {
  Recipe recipe;
  const int input = recipe.to(recipe.input(part_of(of.input, of.dim(), rows)), of.sums());
  const int weight = recipe.to(recipe.input(part_of(of.weight, 1, rows)), of.sums());
  const int made = recipe.call("aten::linear", {TensorId{input}, TensorId{weight}, {}}, {of.sums(), of.output.shape});
  return recipe.finished(recipe.reshape(made, of.state(1).shape));
}

Graph result_of(const Linear& of, std::int64_t parts, std::int64_t /*rows*/) {
  Recipe recipe;
  const int states = recipe.input(of.state(parts));
  recipe.input({of.sums(), {parts}});
  int made = recipe.sum(states, {0}, false, of.sums());
  if (of.bias) made = recipe.add(made, recipe.to(recipe.input(*of.bias), of.sums()));
  return recipe.finished(recipe.to(made, of.output.dtype));
}

struct MeanPool {
  std::string op;
  Argument sizes;
  Tensor self;
  int dim = 0;
  Tensor output;

  Dtype sums() const { return precise(output.dtype); }
  Tensor state(std::int64_t parts) const { return {sums(), with_leading({parts}, output.shape)}; }
};

Graph state_of(const MeanPool& of, std::int64_t rows) {
  Recipe recipe;
  const int part = recipe.to(recipe.input(part_of(of.self, of.dim, rows)), of.sums());
  const int made = recipe.call(of.op, {TensorId{part}, of.sizes}, {of.sums(), of.output.shape});
  return recipe.finished(recipe.reshape(made, of.state(1).shape));
}

Graph result_of(const MeanPool& of, std::int64_t parts, std::int64_t /*rows*/) {
  Recipe recipe;
  const int states = recipe.input(of.state(parts));
  const int shares = recipe.input({of.sums(), {parts}});
  Shape by_part(of.output.shape.size() + 1, 1);
  by_part.front() = parts;
  const int weighted = recipe.mul(states, recipe.reshape(shares, by_part));
  return recipe.finished(recipe.to(recipe.sum(weighted, {0}, false, of.sums()), of.output.dtype));
}

}  // namespace

std::optional<Partial> linear_states(const NodeView& view, int dim) {
  if (view.operands() < 2 || view.operands() > 3) return std::nullopt;
  Linear of{view.operand(0), view.operand(1), {}, view.output()};
  if (view.operands() == 3) of.bias = view.operand(2);
  const Shape& weight = of.weight.shape;
  Shape made = of.input.shape;
  if (dim != of.dim() || weight.size() != 2 || weight[1] != made.back()) return std::nullopt;
  made.back() = weight[0];
  const bool has_one_type = is_floating(of.input.dtype) && of.weight.dtype == of.input.dtype &&
                            of.output == Tensor{of.input.dtype, made} &&
                            (!of.bias || *of.bias == Tensor{of.input.dtype, {weight[0]}});
  if (!has_one_type) return std::nullopt;
  Partial partial = partial_by(view, dim, of);
  partial.of_state.push_back({1, 1});
  if (of.bias) partial.of_result = {{2, -1}};
  return partial;
}

std::optional<Partial> mean_pool_states(const NodeView& view, int dim) {
  const MeanPool of{view.node().name(), view.argument(1), view.operand(0), dim, view.output()};
  const bool fits = view.operands() == 1 && view.output_rank() == view.rank(0) && dim < view.output_rank() &&
                    view.output_rows(dim) == 1 && is_floating(of.self.dtype) && of.output.dtype == of.self.dtype;
  if (!fits) return std::nullopt;
  return partial_by(view, dim, of);
}

}  // namespace atl::infer::operators
