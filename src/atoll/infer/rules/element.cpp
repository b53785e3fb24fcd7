// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "atoll/infer/rules/rules.h"

// Operators whose output elements depend on operand elements at the same place, and operators that create tensors.
namespace atl::infer {
namespace {

// Operands are broadcast against each other. kOverloads lists single overloads, where others of the operator do
// something else.
constexpr std::array kOperators{
    "abs",        "acos",        "acosh",        "add",         "addcdiv",     "addcmul",     "alias",
    "asin",       "asinh",       "atan",         "atan2",       "atanh",       "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "ceil",         "celu",        "clamp",       "clamp_max",   "clamp_min",
    "clone",      "contiguous",  "copy",         "cos",         "cosh",        "detach",      "div",
    "elu",        "eq",          "erf",          "erfc",        "exp",         "exp2",        "expm1",
    "fill",       "floor",       "floor_divide", "fmod",        "frac",        "full_like",   "ge",
    "gelu",       "gt",          "hardshrink",   "hardsigmoid", "hardswish",   "hardtanh",    "hypot",
    "isfinite",   "isinf",       "isnan",        "le",          "leaky_relu",  "lerp",        "lift_fresh_copy",
    "log",        "log10",       "log1p",        "log2",        "log_sigmoid", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt",           "masked_fill", "maximum",     "minimum",     "mish",
    "mul",        "nan_to_num",  "ne",           "neg",         "ones_like",   "pow",         "reciprocal",
    "relu",       "relu6",       "remainder",    "round",       "rsqrt",       "rsub",        "selu",
    "sigmoid",    "sign",        "silu",         "sin",         "sinh",        "softplus",    "softshrink",
    "softsign",   "sqrt",        "square",       "sub",         "tan",         "tanh",        "threshold",
    "trunc",      "xlogy",       "zeros_like",   "_to_copy",
};
constexpr std::array kOverloads{"max.other",  "min.other",    "to.dtype",         "to.device",
                                "where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther"};

std::optional<NodeSplit> broadcast(const NodeView& view, int output_dim) {
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (!follow_broadcast(split, view, i, output_dim)) return std::nullopt;
  }
  return split;
}

// (self, p, train): random in training.
std::optional<NodeSplit> dropout(const NodeView& view, int output_dim) {
  if (view.boolean(2)) return std::nullopt;
  return broadcast(view, output_dim);
}

// (self, weight): one weight per channel, or one for all.
std::optional<NodeSplit> prelu(const NodeView& view, int output_dim) {
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || view.operand(1).elements() == 1 || output_dim != 1) return split;
  if (!follow_same(*split, view, 1, 0, output_dim)) return std::nullopt;
  return split;
}

// Nothing of an operand is read except perhaps its element type.
std::optional<NodeSplit> made(const NodeView& view, int /*output_dim*/) {
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (view.rank(i) > 0) follow(split, i, 0, maps::Nothing{});
  }
  return split;
}

SlicedCall keep_rows(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.keep = rows;
  return call;
}

// The argument `sizes` is the shape.
Rule filled(std::size_t sizes) {
  return {made,
          [sizes](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            SlicedCall call = call_by_rows(view, split, rows);
            call.changes.push_back({sizes, with_rows(view.output_shape(), output_dim, rows.size())});
            return call;
          },
          {}};
}

}  // namespace

void add_element_rules(Rules& rules) {
  const Rule element{broadcast, {}, {}};
  for (const char* name : kOperators) rules["aten::" + std::string(name)] = element;
  for (const char* name : kOverloads) rules["aten::" + std::string(name)] = element;
  rules["aten::dropout"] = {dropout, {}, {}};
  rules["aten::prelu"] = {prelu, {}, {}};
  rules["aten::arange"] = {made, keep_rows, {}};
  rules["aten::scalar_tensor"] = {made, keep_rows, {}};
  for (const char* name : {"aten::full", "aten::zeros", "aten::ones"}) rules[name] = filled(0);
  for (const char* name : {"aten::new_full", "aten::new_zeros", "aten::new_ones"}) rules[name] = filled(1);
}

}  // namespace atl::infer
