// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/call_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "atoll/core/error.h"

namespace atl::infer::safety {
namespace {

std::size_t tensors_in(const Argument& argument) {
  if (std::holds_alternative<TensorId>(argument)) return 1;
  const auto* list = std::get_if<TensorIds>(&argument);
  if (list == nullptr) return 0;
  return static_cast<std::size_t>(
      std::count_if(list->ids.begin(), list->ids.end(), [](const auto& id) { return id.has_value(); }));
}

std::pair<double, double> range_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return {-65504, 65504};
    case Dtype::kBfloat16: return {-3.3895313892515355e38, 3.3895313892515355e38};
    case Dtype::kFloat32: return {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()};
    case Dtype::kFloat64: return {std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max()};
    case Dtype::kInt8: return {-128, 127};
    case Dtype::kInt16: return {-32768, 32767};
    case Dtype::kInt32: return {-2147483648.0, 2147483647.0};
    case Dtype::kInt64: return {-9.2e18, 9.2e18};
    case Dtype::kUint8: return {0, 255};
    case Dtype::kBool: return {0, 1};
  }
  return {0, 0};
}

}  // namespace

CallView::CallView(std::string where, const std::vector<Argument>& args, std::span<const Tensor> operands,
                   bool takes_empty)
    : where_(std::move(where)), args_(args), operands_(operands) {
  std::size_t count = 0;
  for (const Argument& argument : args_) {
    firsts_.push_back(count);
    count += tensors_in(argument);
  }
  if (count != operands_.size()) {
    throw Error(ErrorKind::kInvalidArgument, where_ + " has " + std::to_string(count) +
                                                 " tensors among its arguments, but " +
                                                 std::to_string(operands_.size()) + " types were given");
  }
  for (const Tensor& operand : operands_) {
    bounded(operand.shape);
    if (!takes_empty && operand.elements() == 0)
      refuse("an operand has no elements, which this operator does not support safely");
  }
}

void CallView::refuse(const std::string& reason) const { throw Error(ErrorKind::kRefused, where_ + ": " + reason); }

void CallView::wrong(std::size_t argument, const std::string& wanted) const {
  refuse("argument " + std::to_string(argument) + " must be " + wanted);
}

const Argument& CallView::at(std::size_t argument) const {
  if (argument >= args_.size()) {
    refuse("it lacks argument " + std::to_string(argument) + ": it has " + std::to_string(args_.size()));
  }
  return args_[argument];
}

void CallView::require_arguments(std::size_t count) const {
  if (args_.size() != count) {
    refuse("it has " + std::to_string(args_.size()) + " arguments, but the operator takes " + std::to_string(count));
  }
}

const Tensor& CallView::tensor(std::size_t argument) const {
  if (!std::holds_alternative<TensorId>(at(argument))) wrong(argument, "a tensor");
  return operands_[firsts_[argument]];
}

const Tensor& CallView::tensor(std::size_t argument, Dtypes dtypes) const {
  const Tensor& found = tensor(argument);
  if (!dtypes.has(found.dtype)) wrong(argument, std::string("a tensor of another type than ") + to_string(found.dtype));
  return found;
}

const Tensor* CallView::try_tensor(std::size_t argument) const {
  return is_null(argument) ? nullptr : &tensor(argument);
}

Operand CallView::operand(std::size_t argument) const {
  if (!std::holds_alternative<TensorId>(at(argument))) return scalar(argument);
  const Tensor& found = operands_[firsts_[argument]];
  return {found.dtype, found.shape, false};
}

std::vector<const Tensor*> CallView::tensors(std::size_t argument) const {
  std::vector<const Tensor*> found = optional_tensors(argument);
  const bool complete = std::all_of(found.begin(), found.end(), [](const Tensor* one) { return one != nullptr; });
  if (!complete) wrong(argument, "a list of tensors without null");
  return found;
}

std::vector<const Tensor*> CallView::optional_tensors(std::size_t argument) const {
  const auto* list = std::get_if<TensorIds>(&at(argument));
  if (list == nullptr) wrong(argument, "a list of tensors");
  std::vector<const Tensor*> found;
  std::size_t next = firsts_[argument];
  for (const std::optional<int>& id : list->ids) found.push_back(id ? &operands_[next++] : nullptr);
  return found;
}

bool CallView::is_null(std::size_t argument) const { return std::holds_alternative<std::monostate>(at(argument)); }

void CallView::require_null(std::size_t argument) const {
  if (!is_null(argument)) wrong(argument, "null");
}

bool CallView::boolean(std::size_t argument) const {
  const auto* value = std::get_if<bool>(&at(argument));
  if (value == nullptr) wrong(argument, "true or false");
  return *value;
}

std::int64_t CallView::integer(std::size_t argument, std::int64_t low, std::int64_t high) const {
  const auto* value = std::get_if<std::int64_t>(&at(argument));
  if (value == nullptr || *value < low || *value > high) {
    wrong(argument, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return *value;
}

std::optional<std::int64_t> CallView::try_integer(std::size_t argument, std::int64_t low, std::int64_t high) const {
  if (is_null(argument)) return std::nullopt;
  return integer(argument, low, high);
}

double CallView::real(std::size_t argument) const {
  if (const auto* whole = std::get_if<std::int64_t>(&at(argument))) return static_cast<double>(*whole);
  const auto* value = std::get_if<double>(&at(argument));
  if (value == nullptr || !std::isfinite(*value)) wrong(argument, "a finite number");
  return *value;
}

Operand CallView::scalar(std::size_t argument) const {
  const Argument& value = at(argument);
  if (std::holds_alternative<bool>(value)) return {Dtype::kBool, {}, true};
  if (std::holds_alternative<std::int64_t>(value)) return {Dtype::kInt64, {}, true};
  if (std::holds_alternative<double>(value)) return {Dtype::kFloat64, {}, true};
  wrong(argument, "a number, or a tensor where the operator takes one");
}

void CallView::require_fits(std::size_t argument, Dtype dtype) const {
  static_cast<void>(scalar(argument));
  double value = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&at(argument))) value = static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&at(argument))) value = *number;
  if (std::get_if<bool>(&at(argument)) != nullptr) return;
  const auto [low, high] = range_of(dtype);
  const bool special = is_floating(dtype) && !std::isfinite(value);
  if (!special && !(value >= low && value <= high))
    wrong(argument, std::string("a number that ") + to_string(dtype) + " can hold");
}

Ints CallView::integers(std::size_t argument, std::int64_t low, std::int64_t high) const {
  const auto* list = std::get_if<Ints>(&at(argument));
  if (list == nullptr) wrong(argument, "a list of integers");
  Ints values = *list;
  const bool good =
      std::all_of(values.begin(), values.end(), [&](auto value) { return value >= low && value <= high; });
  if (!good) wrong(argument, "integers from " + std::to_string(low) + " to " + std::to_string(high));
  return values;
}

Ints CallView::per_dim(std::size_t argument, std::size_t dims, std::int64_t low, std::int64_t high) const {
  Ints values = integers(argument, low, high);
  if (values.size() != dims) wrong(argument, "a list of " + std::to_string(dims) + ", one for each dimension");
  return values;
}

Floats CallView::floats(std::size_t argument) const {
  const auto* values = std::get_if<Floats>(&at(argument));
  if (values == nullptr) wrong(argument, "a list of floats");
  return *values;
}

std::string CallView::text(std::size_t argument) const {
  const auto* value = std::get_if<Text>(&at(argument));
  if (value == nullptr) wrong(argument, "a string");
  return value->value;
}

std::optional<Dtype> CallView::try_dtype(std::size_t argument) const {
  if (is_null(argument)) return std::nullopt;
  const auto* value = std::get_if<Dtype>(&at(argument));
  if (value == nullptr) wrong(argument, "an element type");
  return *value;
}

void CallView::require_memory_format(std::size_t argument, std::size_t rank) const {
  if (is_null(argument)) return;
  const auto* format = std::get_if<MemoryFormat>(&at(argument));
  const bool good = format != nullptr && (*format != MemoryFormat::kChannelsLast || rank == 4) &&
                    (*format != MemoryFormat::kChannelsLast3d || rank == 5);
  if (!good) wrong(argument, "a memory format that suits its tensor");
}

Dtype CallView::options(std::size_t argument, Dtype fallback) const {
  const bool strided = is_null(argument + 1) || std::holds_alternative<Layout>(at(argument + 1));
  if (!strided) wrong(argument + 1, "null or the layout strided");
  const bool here = is_null(argument + 2) || std::holds_alternative<RunnersDevice>(at(argument + 2));
  if (!here) wrong(argument + 2, "null or the runner's device");
  const bool pinned = !is_null(argument + 3) && boolean(argument + 3);
  if (pinned) wrong(argument + 3, "null or false: graphs cannot pin memory");
  return try_dtype(argument).value_or(fallback);
}

int CallView::normal(std::int64_t dim, std::size_t rank) const {
  const auto count = static_cast<std::int64_t>(rank);
  if (dim < -count || dim >= count) {
    refuse("there is no dimension " + std::to_string(dim) + " in a tensor of " + std::to_string(count));
  }
  return static_cast<int>(dim < 0 ? dim + count : dim);
}

int CallView::dim(std::size_t argument, std::size_t rank) const {
  return normal(integer(argument, -kIntegerBound, kIntegerBound), rank);
}

std::vector<int> CallView::dims(std::size_t argument, std::size_t rank) const {
  std::vector<int> found;
  if (std::holds_alternative<std::int64_t>(at(argument))) return {dim(argument, rank)};
  for (const std::int64_t dim : integers(argument, -kIntegerBound, kIntegerBound)) found.push_back(normal(dim, rank));
  if (std::set<int>(found.begin(), found.end()).size() != found.size())
    wrong(argument, "a list of different dimensions");
  return found;
}

Shape CallView::bounded(Shape shape) const {
  if (shape.size() > kMaxDims) refuse("a tensor has more than " + std::to_string(kMaxDims) + " dimensions");
  std::int64_t elements = 1;  // an empty dimension counts as 1, so that the others stay bounded
  for (const std::int64_t size : shape) {
    if (size < 0) refuse("a tensor would have " + std::to_string(size) + " rows");
    const std::int64_t rows = std::max<std::int64_t>(size, 1);
    if (rows > kMaxElements / elements) refuse("a tensor has 2^31 elements or more");
    elements *= rows;
  }
  return shape;
}

Shape CallView::broadcast(const Shape& a, const Shape& b) const {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape shape = longer;
  const std::size_t offset = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    std::int64_t& size = shape[offset + i];
    if (size == shorter[i] || shorter[i] == 1) continue;
    if (size != 1) refuse("shapes of its operands do not fit together");
    size = shorter[i];
  }
  return bounded(std::move(shape));
}

bool CallView::spreads(const Shape& shape, const Shape& target) {
  if (shape.size() > target.size()) return false;
  const std::size_t offset = target.size() - shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && shape[i] != target[offset + i]) return false;
  }
  return true;
}

}  // namespace atl::infer::safety
