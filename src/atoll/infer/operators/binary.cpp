// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators on several tensors or numbers that are broadcast against each other.
namespace atl::infer::operators {
namespace {

enum class BinaryResult { kPromoted, kFloating, kBoolean };

struct Binary {
  Dtypes takes;  // the type in which it computes
  BinaryResult result = BinaryResult::kPromoted;
  bool has_alpha = false;  // as the argument after the operands
  std::size_t more = 0;    // other arguments after them, which the caller has checked
};

// The operands at `places`: the type in which they are computed, and the shape.
struct Mixed {
  Dtype dtype = Dtype::kFloat32;
  Shape shape;
  double copies = 0;  // bytes of operands in that type
};

Mixed mix(const CallView& view, std::span<const std::size_t> places) {
  std::vector<Operand> operands;
  Mixed mixed;
  bool has_tensor = false;
  for (const std::size_t place : places) {
    operands.push_back(view.value(place));
    has_tensor = has_tensor || !operands.back().is_number;
    mixed.shape = view.broadcast(mixed.shape, operands.back().shape);
  }
  view.require(has_tensor, "it has no tensor among its operands");
  mixed.dtype = result_type(operands);
  for (const Operand& operand : operands) mixed.copies += count_of(operand.shape) * 8;
  return mixed;
}

Made made_of(const CallView& view, const Mixed& mixed, Dtype dtype) {
  Made made = one(view, dtype, mixed.shape);
  made.workspace_bytes = mixed.copies;
  if (dtype != mixed.dtype) made.workspace_bytes += count_of(mixed.shape) * static_cast<double>(bytes_of(mixed.dtype));
  return made;
}

Made binary(const CallView& view, const Binary& rule) {
  view.require_arguments(2 + (rule.has_alpha ? 1 : 0) + rule.more);
  const Mixed mixed = mix(view, std::array<std::size_t, 2>{0, 1});
  if (!rule.takes.has(mixed.dtype)) view.refuse(std::string("it does not compute in ") + to_string(mixed.dtype));
  if (rule.has_alpha) {
    const Dtype alpha = view.scalar(2).dtype;
    view.require(alpha == Dtype::kInt64 || (alpha == Dtype::kFloat64 && is_floating(mixed.dtype)),
                 "alpha does not fit the type of the result");
    view.require_fits(2, mixed.dtype);
  }
  if (rule.result == BinaryResult::kBoolean) return made_of(view, mixed, Dtype::kBool);
  const bool divided = rule.result == BinaryResult::kFloating && !is_floating(mixed.dtype);
  return made_of(view, mixed, divided ? Dtype::kFloat32 : mixed.dtype);
}

// Booleans cannot be subtracted, from anything.
Made subtract(const CallView& view) {
  view.require(view.value(0).dtype != Dtype::kBool && view.value(1).dtype != Dtype::kBool, "it subtracts booleans");
  return binary(view, {kNumbers, BinaryResult::kPromoted, true});
}

// Integers may only be divided by a positive number: division by 0, or of the lowest integer by -1, ends the process.
Made divide_whole(const CallView& view, std::size_t more) {
  Made made = binary(view, {kNumbers, BinaryResult::kPromoted, false, more});
  const bool harmless = is_floating(made.outputs.front().dtype) || view.value(1).is_number;
  view.require(harmless, "it must not divide integers by a tensor");
  if (!is_floating(made.outputs.front().dtype)) {
    static_cast<void>(view.integer(1, 1, kIntegerBound));
    view.require_fits(1, made.outputs.front().dtype);
  }
  return made;
}

// (self, other, rounding_mode)
Made divide_mode(const CallView& view) {
  view.require_arguments(3);
  if (view.is_null(2)) return binary(view, {kAny, BinaryResult::kFloating, false, 1});
  const std::string mode = view.text(2);
  view.require(mode == "floor" || mode == "trunc", "its rounding mode must be floor or trunc");
  return divide_whole(view, 1);
}

// An integer base requires a non-negative integer exponent.
Made power(const CallView& view) {
  Made made = binary(view, {kNumbers});
  if (is_floating(made.outputs.front().dtype)) {
    if (view.value(1).is_number) view.require_fits(1, made.outputs.front().dtype);
    if (view.value(0).is_number) view.require_fits(0, made.outputs.front().dtype);
    return made;
  }
  static_cast<void>(view.integer(1, 0, 64));
  return made;
}

// (condition, self, other)
Made where(const CallView& view) {
  view.require_arguments(3);
  const Tensor& condition = view.tensor(0);
  view.require(condition.dtype == Dtype::kBool, "its condition must be boolean");
  const std::array<Operand, 2> values{view.value(1), view.value(2)};
  const Dtype dtype = result_type(values);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (values.at(i - 1).is_number) view.require_fits(i, dtype);
  }
  Mixed mixed = mix(view, std::array<std::size_t, 3>{0, 1, 2});
  mixed.dtype = dtype;
  return made_of(view, mixed, dtype);
}

// (self, mask, value)
Made masked_fill(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const Tensor& mask = view.tensor(1);
  const Operand value = view.value(2);
  view.require(mask.dtype == Dtype::kBool, "its mask must be boolean");
  view.require(value.shape.empty(), "its value must not have dimensions");
  if (value.is_number) {
    view.require_fits(2, self.dtype);
  } else {
    view.require(value.dtype == self.dtype, "its value must have its input's type");
  }
  Made made = one(view, self.dtype, view.broadcast(self.shape, mask.shape));
  made.workspace_bytes = bytes_in(self) + bytes_in(mask);
  return made;
}

// (self, min, max): one of them may be null. clamp_min and clamp_max have one.
Made clamp(const CallView& view) {
  view.require(view.arguments() == 2 || view.arguments() == 3, "it must have a minimum and a maximum as arguments");
  static_cast<void>(view.tensor(0, kNumbers));
  std::vector<std::size_t> places{0};
  for (std::size_t i = 1; i < view.arguments(); ++i) {
    if (!view.is_null(i)) places.push_back(i);
  }
  view.require(places.size() > 1, "it has neither a minimum nor a maximum");
  const Mixed mixed = mix(view, places);
  for (std::size_t i = 1; i < places.size(); ++i) {
    const Operand bound = view.value(places[i]);
    view.require(bound.dtype != Dtype::kBool, "its bounds must not be boolean");
    if (bound.is_number) view.require_fits(places[i], mixed.dtype);
  }
  return made_of(view, mixed, mixed.dtype);
}

// (self, tensor1, tensor2, value) and (self, end, weight)
Made mixed_floats(const CallView& view, bool has_value) {
  view.require_arguments(has_value ? 4 : 3);
  const Mixed mixed = mix(view, std::array<std::size_t, 3>{0, 1, 2});
  for (const Tensor& operand : view.types()) {
    view.require(operand.dtype == mixed.dtype && is_floating(operand.dtype),
                 "its operands must have the same floating type");
  }
  view.require(!view.value(0).is_number && !view.value(1).is_number, "it has a number in place of a tensor");
  view.require(!has_value || !view.value(2).is_number, "it has a number in place of a tensor");
  view.require_fits(has_value ? 3 : 2, mixed.dtype);
  return made_of(view, mixed, mixed.dtype);
}

// The number is the argument `number`, a tensor the other one.
template <typename Validate>
auto with_number(std::size_t number, Validate validate) {
  return [number, validate](const CallView& view) {
    static_cast<void>(view.scalar(number));
    static_cast<void>(view.tensor(1 - number));
    return validate(view);
  };
}

}  // namespace

void add_binary(Table& table) {
  const auto add_as = [&](const std::string& name, auto made_by) {
    table["aten::" + name] = {made_by, {split_elements}, true};
  };
  const auto add = [&](const std::string& name, auto made_by) {
    add_as(name + ".Tensor", made_by);
    add_as(name + ".Scalar", with_number(1, made_by));
  };
  const auto by = [](Binary rule) { return [rule](const CallView& view) { return binary(view, rule); }; };
  add("add", by({kAny, BinaryResult::kPromoted, true}));
  add("sub", subtract);
  add("rsub", subtract);
  add("mul", by({kAny}));
  add("div", by({kAny, BinaryResult::kFloating}));
  add_as("div.Tensor_mode", divide_mode);
  add_as("div.Scalar_mode", with_number(1, divide_mode));
  const auto whole_numbers = [](const CallView& view) { return divide_whole(view, 0); };
  for (const char* name : {"remainder", "fmod"}) add(name, whole_numbers);
  add_as("floor_divide", whole_numbers);
  add_as("floor_divide.Scalar", with_number(1, whole_numbers));
  add_as("pow.Tensor_Scalar", with_number(1, power));
  add_as("pow.Tensor_Tensor", power);
  add_as("pow.Scalar", with_number(0, power));
  for (const char* name : {"eq", "ne", "lt", "le", "gt", "ge"}) add(name, by({kAny, BinaryResult::kBoolean}));
  for (const char* name : {"bitwise_and", "bitwise_or", "bitwise_xor"}) add(name, by({kWhole}));
  for (const char* name : {"aten::__and__", "aten::__or__"}) {
    table[name + std::string(".Tensor")] = {by({kWhole}), {}, true};
    table[name + std::string(".Scalar")] = {with_number(1, by({kWhole})), {}, true};
  }
  for (const char* name : {"logical_and", "logical_or", "logical_xor"}) {
    add_as(name, by({kAny, BinaryResult::kBoolean}));
  }
  for (const char* name : {"maximum", "minimum", "max.other", "min.other"}) add_as(name, by({kAny}));
  add_as("atan2", by({kAny, BinaryResult::kFloating}));
  for (const char* overload : {"self", "ScalarSelf", "ScalarOther", "Scalar"}) {
    add_as("where." + std::string(overload), where);
  }
  for (const char* overload : {"Scalar", "Tensor"}) add_as("masked_fill." + std::string(overload), masked_fill);
  for (const char* name : {"clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor"}) {
    add_as(name, clamp);
  }
  for (const char* name : {"addcmul", "addcdiv"}) {
    add_as(name, [](const CallView& view) { return mixed_floats(view, true); });
  }
  add_as("lerp.Scalar", [](const CallView& view) { return mixed_floats(view, false); });
}

}  // namespace atl::infer::operators
