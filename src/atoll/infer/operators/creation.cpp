// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that create tensors. All of them initialise their memory: empty and the like are not on the list, because
// they would disclose what the process had in it.
namespace atl::infer::operators {
namespace {

Dtype type_of_number(const CallView& view, std::size_t argument) {
  const Dtype dtype = view.scalar(argument).dtype;
  return dtype == Dtype::kFloat64 ? Dtype::kFloat32 : dtype;
}

enum class Like { kNothing, kType, kTensor };

// ([self,] [size,] [fill_value,] dtype, layout, device, pin_memory[, memory_format]): of self's type if it has self, of
// its shape and layout if it has no size.
Made filled(const CallView& view, Like like, bool has_value) {
  const std::size_t value = like == Like::kType ? 2 : 1;
  const std::size_t options = value + (has_value ? 1 : 0);
  view.require_arguments(options + (like == Like::kTensor ? 5 : 4));
  const bool has_self = like != Like::kNothing;
  const Dtype usual = has_self ? view.tensor(0).dtype : has_value ? type_of_number(view, value) : Dtype::kFloat32;
  const Dtype dtype = view.options(options, usual);
  if (has_value) view.require_fits(value, dtype);
  if (like != Like::kTensor) return one(view, dtype, view.integers(value - 1, 0, kMaxAdmittedRows));
  const Shape& shape = view.tensor(0).shape;
  view.require_memory_format(options + 4, shape.size());
  return one(view, dtype, shape);
}

// (s, dtype, layout, device, pin_memory)
Made scalar_tensor(const CallView& view) {
  view.require_arguments(5);
  const Dtype dtype = view.options(1, Dtype::kFloat32);
  view.require_fits(0, dtype);
  return one(view, dtype, {});
}

// A finite number from an argument, or the default for null.
double number_at(const CallView& view, std::size_t argument) {
  view.require(view.scalar(argument).dtype != Dtype::kBool, "its bounds must not be boolean");
  return view.real(argument);
}

std::int64_t steps(const CallView& view, double start, double end, double step) {
  view.require(step != 0 && (end - start) * step >= 0, "its step must be non-zero and lead towards its end");
  const double count = std::ceil((end - start) / step);
  view.require(count >= 0 && count <= static_cast<double>(kMaxAdmittedRows), "it has too many steps");
  return static_cast<std::int64_t>(count);
}

// ([start,] end[, step], dtype, layout, device, pin_memory)
Made arange(const CallView& view, std::size_t numbers) {
  view.require_arguments(numbers + 4);
  bool whole = true;
  for (std::size_t i = 0; i < numbers; ++i) whole = whole && view.scalar(i).dtype == Dtype::kInt64;
  const double start = numbers > 1 ? number_at(view, 0) : 0;
  const double end = number_at(view, numbers > 1 ? 1 : 0);
  const double step = numbers > 2 ? number_at(view, 2) : 1;
  const Dtype dtype = view.options(numbers, whole ? Dtype::kInt64 : Dtype::kFloat32);
  view.require(dtype != Dtype::kBool, "it cannot count in booleans");
  // Kernels convert the bounds to an integer type first.
  view.require(whole || is_floating(dtype), "its bounds must be integers for an integer type");
  for (std::size_t i = 0; i < numbers; ++i) view.require_fits(i, dtype);
  return one(view, dtype, {steps(view, start, end, step)});
}

// (start, end, steps, dtype, layout, device, pin_memory)
Made linspace(const CallView& view) {
  view.require_arguments(7);
  const Dtype dtype = view.options(3, Dtype::kFloat32);
  view.require(is_floating(dtype), "its type must be floating");
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    static_cast<void>(number_at(view, i));
    view.require_fits(i, dtype);
  }
  return one(view, dtype, {view.integer(2, 0, kMaxAdmittedRows)});
}

// Nothing of an operand is read except perhaps its element type.
std::optional<NodeSplit> split_created(const NodeView& view, int /*output_dim*/) {
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (view.rank(i) > 0) follow(split, i, 0, maps::Nothing{});
  }
  return split;
}

// All rows are made, and some of them kept.
SlicedCall keep_rows(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.keep = rows;
  return call;
}

// The argument `sizes` is the shape.
Rule sized_rule(std::size_t sizes) {
  return {split_created, [sizes](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            SlicedCall call = call_by_rows(view, split, rows);
            call.changes.push_back({sizes, with_rows(view.output_shape(), output_dim, rows.size())});
            return call;
          }};
}

}  // namespace

void add_creation(Table& table) {
  for (const char* name : {"full", "zeros", "ones"}) {
    const std::string op = name;
    const auto made = [has_value = op == "full"](Like like) {
      return [=](const CallView& view) { return filled(view, like, has_value); };
    };
    table["aten::" + op] = {made(Like::kNothing), sized_rule(0), true};
    table["aten::new_" + op] = {made(Like::kType), sized_rule(1), true};
    table["aten::" + op + "_like"] = {made(Like::kTensor), {split_elements}, true};
  }
  const Rule kept{split_created, keep_rows};
  table["aten::scalar_tensor"] = {scalar_tensor, kept};
  table["aten::arange"] = {[](const CallView& view) { return arange(view, 1); }, kept};
  table["aten::arange.start"] = {[](const CallView& view) { return arange(view, 2); }, kept};
  table["aten::arange.start_step"] = {[](const CallView& view) { return arange(view, 3); }, kept};
  table["aten::linspace"] = {linspace};
}

}  // namespace atl::infer::operators
