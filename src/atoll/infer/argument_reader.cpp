// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/argument_reader.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace atl::infer {

std::size_t tensors_in(const Argument& argument) {
  if (std::holds_alternative<TensorId>(argument)) return 1;
  const auto* list = std::get_if<TensorIds>(&argument);
  if (list == nullptr) return 0;
  return static_cast<std::size_t>(
      std::count_if(list->ids.begin(), list->ids.end(), [](const auto& id) { return id.has_value(); }));
}

void ArgumentReader::refuse(const std::string& reason) const {
  if (is_rule_) throw UnfitCall(name() + ": " + reason);
  throw Error(ErrorKind::kRefused, name() + ": " + reason);
}

void ArgumentReader::wrong(std::size_t argument, const std::string& wanted) const {
  if (!is_rule_) unfit(argument, wanted);
  throw UnfitCall(name() + ", has argument " + std::to_string(argument) + " of the wrong type: it must be " + wanted);
}

void ArgumentReader::unfit(std::size_t argument, const std::string& wanted) const {
  refuse("argument " + std::to_string(argument) + " must be " + wanted);
}

void ArgumentReader::require_arguments(std::size_t count) const {
  if (args_.size() != count) {
    refuse("it has " + std::to_string(args_.size()) + " arguments, but the operator takes " + std::to_string(count));
  }
}

const Argument& ArgumentReader::argument(std::size_t argument) const {
  if (argument < args_.size()) return args_[argument];
  const std::string lacks = "lacks argument " + std::to_string(argument) + ": it has " + std::to_string(args_.size());
  if (is_rule_) throw UnfitCall(name() + ", " + lacks);
  refuse("it " + lacks);
}

std::size_t ArgumentReader::operands_before(std::size_t argument) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < argument; ++i) count += tensors_in(args_[i]);
  return count;
}

std::optional<std::size_t> ArgumentReader::operand_at(std::size_t argument) const {
  if (!std::holds_alternative<TensorId>(this->argument(argument))) return std::nullopt;
  return operands_before(argument);
}

const Tensor& ArgumentReader::tensor(std::size_t argument) const {
  const std::optional<std::size_t> found = operand_at(argument);
  if (!found) unfit(argument, "a tensor");
  return operand(*found);
}

const Tensor& ArgumentReader::tensor(std::size_t argument, Dtypes dtypes) const {
  const Tensor& found = tensor(argument);
  if (!dtypes.has(found.dtype)) unfit(argument, std::string("a tensor of another type than ") + to_string(found.dtype));
  return found;
}

const Tensor* ArgumentReader::try_tensor(std::size_t argument) const {
  return is_null(argument) ? nullptr : &tensor(argument);
}

std::vector<const Tensor*> ArgumentReader::tensors(std::size_t argument) const {
  std::vector<const Tensor*> found = optional_tensors(argument);
  const bool complete = std::all_of(found.begin(), found.end(), [](const Tensor* one) { return one != nullptr; });
  if (!complete) unfit(argument, "a list of tensors without null");
  return found;
}

std::vector<const Tensor*> ArgumentReader::optional_tensors(std::size_t argument) const {
  const auto* list = std::get_if<TensorIds>(&this->argument(argument));
  if (list == nullptr) unfit(argument, "a list of tensors");
  std::vector<const Tensor*> found;
  std::size_t next = operands_before(argument);
  for (const std::optional<int>& id : list->ids) found.push_back(id ? &operand(next++) : nullptr);
  return found;
}

bool ArgumentReader::is_null(std::size_t argument) const {
  return std::holds_alternative<std::monostate>(this->argument(argument));
}

void ArgumentReader::require_null(std::size_t argument) const {
  if (!is_null(argument)) unfit(argument, "null");
}

template <typename Type>
const Type& ArgumentReader::of_type(std::size_t argument, const char* wanted) const {
  const auto* value = std::get_if<Type>(&this->argument(argument));
  if (value == nullptr) wrong(argument, wanted);
  return *value;
}

bool ArgumentReader::boolean(std::size_t argument) const { return of_type<bool>(argument, "true or false"); }

std::int64_t ArgumentReader::integer(std::size_t argument, std::int64_t low, std::int64_t high) const {
  const auto* value = std::get_if<std::int64_t>(&this->argument(argument));
  if (value != nullptr && *value >= low && *value <= high) return *value;
  const std::string wanted = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  if (value == nullptr) wrong(argument, wanted);
  unfit(argument, wanted);
}

std::optional<std::int64_t> ArgumentReader::try_integer(std::size_t argument, std::int64_t low,
                                                        std::int64_t high) const {
  if (is_null(argument)) return std::nullopt;
  return integer(argument, low, high);
}

double ArgumentReader::real(std::size_t argument) const {
  if (const auto* whole = std::get_if<std::int64_t>(&this->argument(argument))) return static_cast<double>(*whole);
  const auto* value = std::get_if<double>(&this->argument(argument));
  if (value == nullptr || !std::isfinite(*value)) unfit(argument, "a finite number");
  return *value;
}

Ints ArgumentReader::integers(std::size_t argument, std::int64_t low, std::int64_t high) const {
  if (is_rule_ && std::holds_alternative<std::int64_t>(this->argument(argument))) return {integer(argument, low, high)};
  const Ints& list = of_type<Ints>(argument, "a list of integers");
  const bool good = std::all_of(list.begin(), list.end(), [&](auto value) { return value >= low && value <= high; });
  if (!good) unfit(argument, "integers from " + std::to_string(low) + " to " + std::to_string(high));
  return list;
}

Ints ArgumentReader::per_dim(std::size_t argument, std::size_t dims, std::int64_t low, std::int64_t high) const {
  Ints values = integers(argument, low, high);
  if (is_rule_ && values.size() == 1) values.resize(dims, values.front());
  if (values.size() != dims) unfit(argument, "a list of " + std::to_string(dims) + ", one for each dimension");
  return values;
}

Floats ArgumentReader::floats(std::size_t argument) const { return of_type<Floats>(argument, "a list of floats"); }

std::string ArgumentReader::text(std::size_t argument) const { return of_type<Text>(argument, "a string").value; }

std::optional<Dtype> ArgumentReader::try_dtype(std::size_t argument) const {
  if (is_null(argument)) return std::nullopt;
  return of_type<Dtype>(argument, "an element type");
}

int ArgumentReader::normal(std::int64_t dim, std::size_t rank) const {
  const auto count = static_cast<std::int64_t>(rank);
  if (dim < -count || dim >= count) {
    refuse("there is no dimension " + std::to_string(dim) + " in a tensor of " + std::to_string(count));
  }
  return static_cast<int>(dim < 0 ? dim + count : dim);
}

int ArgumentReader::dim(std::size_t argument, std::size_t rank) const { return normal(integer(argument), rank); }

std::vector<int> ArgumentReader::dims(std::size_t argument, std::size_t rank) const {
  if (std::holds_alternative<std::int64_t>(this->argument(argument))) return {dim(argument, rank)};
  std::vector<int> found;
  for (const std::int64_t dim : integers(argument)) found.push_back(normal(dim, rank));
  const bool differ = std::set<int>(found.begin(), found.end()).size() == found.size();
  if (!is_rule_ && !differ) unfit(argument, "a list of different dimensions");
  return found;
}

Shape ArgumentReader::bounded(Shape shape) const {
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

Shape ArgumentReader::broadcast(const Shape& a, const Shape& b) const {
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

bool ArgumentReader::spreads(const Shape& shape, const Shape& target) {
  if (shape.size() > target.size()) return false;
  const std::size_t offset = target.size() - shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && shape[i] != target[offset + i]) return false;
  }
  return true;
}

}  // namespace atl::infer
