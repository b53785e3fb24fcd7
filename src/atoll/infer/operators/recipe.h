// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/infer/graph.h"

namespace atl::infer::operators {

/// The type in which elements are summed: float32 for halves, int64 for smaller integers and booleans.
Dtype precise(Dtype dtype) noexcept;

/// Builds a small graph call by call, with the types that PyTorch gives the results. Functions return tensors; shapes
/// have to fit.
class Recipe {
 public:
  int input(Tensor type);
  const Tensor& type(int tensor) const { return graph_.tensors[static_cast<std::size_t>(tensor)]; }
  const Shape& shape(int tensor) const { return type(tensor).shape; }

  /// Returns the tensor itself where nothing changes.
  int to(int tensor, Dtype dtype);
  int reshape(int tensor, const Shape& wanted);

  int exp(int tensor) { return unary("exp", tensor); }
  int log(int tensor) { return unary("log", tensor); }
  int sqrt(int tensor) { return unary("sqrt", tensor); }
  int rsqrt(int tensor) { return unary("rsqrt", tensor); }

  /// Combines two tensors of the same type, broadcast.
  int add(int a, int b) { return binary("add", a, TensorId{b}, true); }
  int sub(int a, int b) { return binary("sub", a, TensorId{b}, true); }
  int mul(int a, int b) { return binary("mul", a, TensorId{b}, false); }
  int div(int a, int b) { return binary("div", a, TensorId{b}, false); }
  int add_number(int a, double b) { return binary("add", a, b, true); }
  int mul_number(int a, double b) { return binary("mul", a, b, false); }
  int div_number(int a, double b) { return binary("div", a, b, false); }
  int clamp(int tensor, double low, std::optional<double> high);

  int sum(int tensor, const Ints& dims, bool keeps, Dtype dtype);
  /// The maxima ("amax") or minima ("amin").
  int extreme(const char* name, int tensor, const Ints& dims, bool keeps);
  /// Mean and variance (divided by the count of elements); reduced dimensions keep one row.
  std::pair<int, int> moments(int tensor, const Ints& dims);

  /// Stacks tensors of one shape along a new dimension.
  int stack(const std::vector<int>& tensors, int dim);
  int select(int tensor, int dim, std::int64_t index);
  int call(const std::string& op, std::vector<Argument> args, Tensor made);

  /// The graph that returns `output`; call it last.
  Graph finished(int output);

 private:
  int unary(const char* name, int tensor);
  int binary(const char* name, int a, const Argument& b, bool has_alpha);
  int add_tensor(Tensor type);

  Graph graph_;
};

/// `shape` with one row along each of `dims`; without these dimensions.
Shape with_ones(Shape shape, const Ints& dims);
Shape without_dims(const Shape& shape, const Ints& dims);
/// `shape` with the dimensions `first` before it.
Shape with_leading(const Shape& first, const Shape& shape);

}  // namespace atl::infer::operators
