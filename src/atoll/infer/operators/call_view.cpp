// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/call_view.h"

#include <cmath>
#include <limits>
#include <utility>

#include "atoll/core/error.h"

namespace atl::infer::operators {
namespace {

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

CallView::CallView(std::string where, const std::vector<Argument>& args, std::span<const Tensor> types,
                   bool takes_empty)
    : ArgumentReader(args, false), where_(std::move(where)), types_(types) {
  std::size_t count = 0;
  for (const Argument& argument : args) count += tensors_in(argument);
  if (count != types_.size()) {
    throw Error(ErrorKind::kInvalidArgument, where_ + " has " + std::to_string(count) +
                                                 " tensors among its arguments, but " + std::to_string(types_.size()) +
                                                 " types were given");
  }
  for (const Tensor& type : types_) {
    bounded(type.shape);
    if (!takes_empty && type.elements() == 0)
      refuse("an operand has no elements, which this operator does not support safely");
  }
}

Operand CallView::value(std::size_t argument) const {
  const auto operand = operand_at(argument);
  if (!operand) return scalar(argument);
  return {types_[*operand].dtype, types_[*operand].shape, false};
}

Operand CallView::scalar(std::size_t argument) const {
  const Argument& value = this->argument(argument);
  if (std::holds_alternative<bool>(value)) return {Dtype::kBool, {}, true};
  if (std::holds_alternative<std::int64_t>(value)) return {Dtype::kInt64, {}, true};
  if (std::holds_alternative<double>(value)) return {Dtype::kFloat64, {}, true};
  unfit(argument, "a number, or a tensor where the operator takes one");
}

void CallView::require_fits(std::size_t argument, Dtype dtype) const {
  static_cast<void>(scalar(argument));
  double value = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&this->argument(argument))) value = static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&this->argument(argument))) value = *number;
  if (std::get_if<bool>(&this->argument(argument)) != nullptr) return;
  const auto [low, high] = range_of(dtype);
  const bool special = is_floating(dtype) && !std::isfinite(value);
  if (!special && !(value >= low && value <= high))
    unfit(argument, std::string("a number that ") + to_string(dtype) + " can hold");
}

void CallView::require_memory_format(std::size_t argument, std::size_t rank) const {
  if (is_null(argument)) return;
  const auto* format = std::get_if<MemoryFormat>(&this->argument(argument));
  const bool good = format != nullptr && (*format != MemoryFormat::kChannelsLast || rank == 4) &&
                    (*format != MemoryFormat::kChannelsLast3d || rank == 5);
  if (!good) unfit(argument, "a memory format that suits its tensor");
}

Dtype CallView::options(std::size_t argument, Dtype fallback) const {
  const bool strided = is_null(argument + 1) || std::holds_alternative<Layout>(this->argument(argument + 1));
  if (!strided) unfit(argument + 1, "null or the layout strided");
  const bool here = is_null(argument + 2) || std::holds_alternative<RunnersDevice>(this->argument(argument + 2));
  if (!here) unfit(argument + 2, "null or the runner's device");
  const bool pinned = !is_null(argument + 3) && boolean(argument + 3);
  if (pinned) unfit(argument + 3, "null or false: graphs cannot pin memory");
  return try_dtype(argument).value_or(fallback);
}

}  // namespace atl::infer::operators
