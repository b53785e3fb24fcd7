// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/recipe.h"

#include <algorithm>

namespace atl::infer::operators {
namespace {

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()), 1);
  for (const Shape* each : {&a, &b}) {
    const std::size_t first = shape.size() - each->size();
    for (std::size_t i = 0; i < each->size(); ++i) {
      if ((*each)[i] != 1) shape[first + i] = (*each)[i];
    }
  }
  return shape;
}

Shape reduced(const Shape& shape, const Ints& dims, bool keeps) {
  return keeps ? with_ones(shape, dims) : without_dims(shape, dims);
}

}  // namespace

Dtype precise(Dtype dtype) noexcept {
  if (!is_floating(dtype)) return Dtype::kInt64;
  return dtype == Dtype::kFloat64 ? dtype : Dtype::kFloat32;
}

int Recipe::add_tensor(Tensor type) {
  graph_.tensors.push_back(std::move(type));
  return static_cast<int>(graph_.tensors.size()) - 1;
}

int Recipe::input(Tensor type) {
  graph_.inputs.push_back(add_tensor(std::move(type)));
  return graph_.inputs.back();
}

int Recipe::call(const std::string& op, std::vector<Argument> args, Tensor made) {
  Node node;
  const std::size_t dot = op.find('.');
  node.op = op.substr(0, dot);
  if (dot != std::string::npos) node.overload = op.substr(dot + 1);
  node.args = std::move(args);
  node.outputs = {add_tensor(std::move(made))};
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().outputs.front();
}

int Recipe::to(int tensor, Dtype dtype) {
  if (type(tensor).dtype == dtype) return tensor;
  // (self, dtype, layout, device, pin_memory, non_blocking, memory_format)
  return call("aten::_to_copy", {TensorId{tensor}, dtype, {}, {}, {}, false, {}}, {dtype, shape(tensor)});
}

int Recipe::reshape(int tensor, const Shape& wanted) {
  if (shape(tensor) == wanted) return tensor;
  return call("aten::reshape", {TensorId{tensor}, Ints(wanted)}, {type(tensor).dtype, wanted});
}

int Recipe::unary(const char* name, int tensor) {
  return call("aten::" + std::string(name), {TensorId{tensor}}, Tensor(type(tensor)));
}

int Recipe::binary(const char* name, int a, const Argument& b, bool has_alpha) {
  Tensor made = type(a);
  if (const auto* other = std::get_if<TensorId>(&b)) made.shape = broadcast_shape(made.shape, shape(other->id));
  std::vector<Argument> args{TensorId{a}, b};
  if (has_alpha) args.emplace_back(std::int64_t{1});
  return call("aten::" + std::string(name) + ".Tensor", std::move(args), std::move(made));
}

int Recipe::clamp(int tensor, double low, std::optional<double> high) {
  const Argument most = high ? Argument(*high) : Argument();
  return call("aten::clamp", {TensorId{tensor}, low, most}, Tensor(type(tensor)));
}

int Recipe::sum(int tensor, const Ints& dims, bool keeps, Dtype dtype) {
  const bool is_usual = type(tensor).dtype == dtype && is_floating(dtype);  // integers are summed in 64 bits
  const Argument wanted = is_usual ? Argument() : Argument(dtype);
  return call("aten::sum.dim_IntList", {TensorId{tensor}, dims, keeps, wanted},
              {dtype, reduced(shape(tensor), dims, keeps)});
}

int Recipe::extreme(const char* name, int tensor, const Ints& dims, bool keeps) {
  return call("aten::" + std::string(name), {TensorId{tensor}, dims, keeps},
              {type(tensor).dtype, reduced(shape(tensor), dims, keeps)});
}

// PyTorch returns the variance first.
std::pair<int, int> Recipe::moments(int tensor, const Ints& dims) {
  const Tensor made{type(tensor).dtype, with_ones(shape(tensor), dims)};
  const int variance = call("aten::var_mean.correction", {TensorId{tensor}, dims, std::int64_t{0}, true}, made);
  const int mean = add_tensor(made);
  graph_.nodes.back().outputs.push_back(mean);
  return {mean, variance};
}

int Recipe::stack(const std::vector<int>& tensors, int dim) {
  Shape made = shape(tensors.front());
  made.insert(made.begin() + dim, static_cast<std::int64_t>(tensors.size()));
  TensorIds list;
  for (const int tensor : tensors) list.ids.emplace_back(tensor);
  return call("aten::stack", {list, std::int64_t{dim}}, {type(tensors.front()).dtype, std::move(made)});
}

int Recipe::select(int tensor, int dim, std::int64_t index) {
  Shape made = shape(tensor);
  made.erase(made.begin() + dim);
  return call("aten::select.int", {TensorId{tensor}, std::int64_t{dim}, index}, {type(tensor).dtype, std::move(made)});
}

Graph Recipe::finished(int output) {
  graph_.outputs = {TensorId{output}};
  return std::move(graph_);
}

Shape with_ones(Shape shape, const Ints& dims) {
  for (const std::int64_t dim : dims) shape.at(static_cast<std::size_t>(dim)) = 1;
  return shape;
}

Shape without_dims(const Shape& shape, const Ints& dims) {
  Shape left;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) == dims.end()) left.push_back(shape[i]);
  }
  return left;
}

Shape with_leading(const Shape& first, const Shape& shape) {
  Shape made = first;
  made.insert(made.end(), shape.begin(), shape.end());
  return made;
}

}  // namespace atl::infer::operators
