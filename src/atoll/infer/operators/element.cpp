// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators on one tensor whose elements depend on the element at the same place. Their kernels iterate over operand
// and result together, for any shape.
namespace atl::infer::operators {
namespace {

enum class UnaryResult { kSame, kFloating, kBoolean };

struct Unary {
  Dtypes takes;
  UnaryResult result = UnaryResult::kSame;
  std::size_t numbers = 0;  // arguments after the tensor
};

Dtype unary_dtype(Dtype dtype, UnaryResult result) {
  if (result == UnaryResult::kBoolean) return Dtype::kBool;
  return result == UnaryResult::kFloating && !is_floating(dtype) ? Dtype::kFloat32 : dtype;
}

Made unary(const CallView& view, const Unary& rule) {
  view.require_arguments(1 + rule.numbers);
  const Tensor& self = view.tensor(0, rule.takes);
  for (std::size_t i = 1; i <= rule.numbers; ++i) view.require_fits(i, self.dtype);
  return with_copies(view, one(view, unary_dtype(self.dtype, rule.result), self.shape));
}

// (self, lambda)
Made softshrink(const CallView& view) {
  view.require(view.real(1) >= 0, "its lambda must not be negative");
  return unary(view, {kFloats, UnaryResult::kSame, 1});
}

// (self, alpha)
Made celu(const CallView& view) {
  view.require(std::abs(view.real(1)) >= 1e-4, "its alpha, by which it divides, is too close to 0");
  return unary(view, {kFloats, UnaryResult::kSame, 1});
}

// (self, approximate)
Made gelu(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0, kFloats);
  const std::string how = view.text(1);
  view.require(how == "none" || how == "tanh", "approximate must be none or tanh");
  return one(view, self.dtype, self.shape);
}

// (self, nan, posinf, neginf)
Made nan_to_num(const CallView& view) {
  view.require_arguments(4);
  const Tensor& self = view.tensor(0, kFloats);
  for (std::size_t i = 1; i < 4; ++i) {
    if (!view.is_null(i)) view.require_fits(i, self.dtype);
  }
  return one(view, self.dtype, self.shape);
}

// (self, weight): one weight, or one for each channel.
void read_prelu(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Tensor& self = reader.tensor(0, kFloats);
  const Tensor& weight = reader.tensor(1);
  const std::int64_t channels = self.shape.size() > 1 ? self.shape[1] : 1;
  reader.require(weight.dtype == self.dtype && weight.shape.size() == 1,
                 "its weight must be a vector of its input's type");
  reader.require(weight.shape[0] == 1 || weight.shape[0] == channels,
                 "it must have one weight, or one for each channel");
  reader.require(!self.shape.empty(), "its input has no dimensions");
}

Made prelu(const CallView& view) {
  read_prelu(view);
  return with_copies(view, one(view, view.tensor(0).dtype, view.tensor(0).shape));
}

std::optional<NodeSplit> split_prelu(const NodeView& view, int output_dim) {
  read_prelu(view);
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || view.operand(1).elements() == 1 || output_dim != 1) return split;
  if (!follow_same(*split, view, 1, 0, output_dim)) return std::nullopt;
  return split;
}

// (self, memory_format)
Made clone(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  view.require_memory_format(1, self.shape.size());
  return one(view, self.dtype, self.shape);
}

Made contiguous(const CallView& view) {
  view.require_arguments(2);
  view.require(!view.is_null(1), "it lacks a memory format");
  return clone(view);
}

Made same(const CallView& view) {
  view.require_arguments(1);
  return one(view, view.tensor(0).dtype, view.tensor(0).shape);
}

// (self, dtype, layout, device, pin_memory, non_blocking, memory_format)
Made to_copy(const CallView& view) {
  view.require_arguments(7);
  const Tensor& self = view.tensor(0);
  const Dtype dtype = view.options(1, self.dtype);
  static_cast<void>(view.boolean(5));
  view.require_memory_format(6, self.shape.size());
  return one(view, dtype, self.shape);
}

// (self, dtype, non_blocking, copy, memory_format)
Made to(const CallView& view) {
  view.require_arguments(5);
  const Tensor& self = view.tensor(0);
  const std::optional<Dtype> dtype = view.try_dtype(1);
  view.require(dtype.has_value(), "it lacks an element type");
  static_cast<void>(view.boolean(2));
  static_cast<void>(view.boolean(3));
  view.require_memory_format(4, self.shape.size());
  return one(view, dtype.value_or(self.dtype), self.shape);
}

// (self, src, non_blocking): src with the shape and type of self.
Made copy(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const Tensor& source = view.tensor(1);
  static_cast<void>(view.boolean(2));
  view.require(ArgumentReader::spreads(source.shape, self.shape), "its source does not fit its target");
  return one(view, self.dtype, self.shape);
}

// (self, p, train)
void read_dropout(const ArgumentReader& reader) {
  reader.require_arguments(3);
  reader.require(reader.real(1) >= 0 && reader.real(1) <= 1, "its probability must be from 0 to 1");
  reader.require(!reader.boolean(2), "it draws random numbers");
}

Made dropout(const CallView& view) {
  read_dropout(view);
  return one(view, view.tensor(0).dtype, view.tensor(0).shape);
}

std::optional<NodeSplit> split_dropout(const NodeView& view, int output_dim) {
  read_dropout(view);
  return split_elements(view, output_dim);
}

// (self, value): the value has no dimensions.
Made fill(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  const Operand value = view.value(1);
  view.require(value.shape.empty(), "its value must not have dimensions");
  if (value.is_number) view.require_fits(1, self.dtype);
  return one(view, self.dtype, self.shape);
}

Made fill_number(const CallView& view) {
  static_cast<void>(view.scalar(1));
  return fill(view);
}

}  // namespace

void add_element(Table& table) {
  const auto add_as = [&](const std::string& name, auto made_by) {
    table["aten::" + name] = {made_by, {split_elements}, true};
  };
  const auto add = [&](const std::string& name, Unary rule) {
    add_as(name, [rule](const CallView& view) { return unary(view, rule); });
  };
  for (const char* name : {"acos",  "acosh",   "asin", "asinh", "atan", "atanh", "cos",   "cosh", "erf",
                           "erfc",  "exp",     "exp2", "expm1", "log",  "log10", "log1p", "log2", "reciprocal",
                           "rsqrt", "sigmoid", "sin",  "sinh",  "sqrt", "tan",   "tanh"}) {
    add(name, {kAny, UnaryResult::kFloating});
  }
  for (const char* name : {"silu", "mish", "hardswish", "hardsigmoid", "relu6", "selu", "log_sigmoid", "frac"}) {
    add(name, {kFloats});
  }
  for (const char* name : {"abs", "ceil", "floor", "neg", "relu", "round", "sign", "square", "trunc"}) {
    add(name, {kNumbers});
  }
  for (const char* name : {"leaky_relu", "hardshrink"}) add(name, {kFloats, UnaryResult::kSame, 1});
  for (const char* name : {"hardtanh", "softplus", "threshold"}) add(name, {kFloats, UnaryResult::kSame, 2});
  add_as("softshrink", softshrink);
  add_as("celu", celu);
  add("elu", {kFloats, UnaryResult::kSame, 3});
  for (const char* name : {"isnan", "isinf", "isfinite", "logical_not"}) add(name, {kAny, UnaryResult::kBoolean});
  add("bitwise_not", {kWhole});
  add_as("gelu", gelu);
  add_as("nan_to_num", nan_to_num);
  table["aten::prelu"] = {prelu, {split_prelu}};
  add_as("clone", clone);
  add_as("contiguous", contiguous);
  for (const char* name : {"alias", "detach", "lift_fresh_copy"}) add_as(name, same);
  add_as("_to_copy", to_copy);
  add_as("to.dtype", to);
  add_as("copy", copy);
  table["aten::dropout"] = {dropout, {split_dropout}, true};
  add_as("fill.Scalar", fill_number);
  add_as("fill.Tensor", fill);
}

}  // namespace atl::infer::operators
