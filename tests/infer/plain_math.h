// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/infer/plain.h"

// Operators on tensors of any shape, as their documentation defines them.
namespace atl::infer::test {

inline std::int64_t elements_of(const Shape& shape) { return Tensor{Dtype::kFloat64, shape}.elements(); }

/// The place of element `index` of a tensor of shape `of` in one of shape `from` that is broadcast against it.
inline std::size_t place_in(const Shape& from, const Shape& of, std::int64_t index) {
  std::int64_t place = 0;
  std::int64_t stride = 1;
  for (std::size_t i = of.size(); i-- > 0;) {
    const std::int64_t at = index % of[i];
    index /= of[i];
    if (of.size() - i > from.size()) continue;
    const std::int64_t rows = from[from.size() - (of.size() - i)];
    if (rows != 1) place += at * stride;
    stride *= rows;
  }
  return static_cast<std::size_t>(place);
}

using Join = std::function<double(double, double)>;

inline Value combined(const Plain& a, const Plain& b, const Join& join) {
  Shape shape(std::max(a.shape.size(), b.shape.size()), 1);
  for (const Shape* each : {&a.shape, &b.shape}) {
    for (std::size_t i = 0; i < each->size(); ++i) {
      std::int64_t& rows = shape[shape.size() - each->size() + i];
      if ((*each)[i] != 1) rows = (*each)[i];
    }
  }
  std::vector<double> data;
  for (std::int64_t i = 0; i < elements_of(shape); ++i) {
    data.push_back(join(a.data.at(place_in(a.shape, shape, i)), b.data.at(place_in(b.shape, shape, i))));
  }
  return plain_value(std::move(shape), std::move(data));
}

inline Value mapped(const Plain& a, const std::function<double(double)>& of) {
  std::vector<double> data;
  for (const double value : a.data) data.push_back(of(value));
  return plain_value(a.shape, std::move(data));
}

inline Value folded(const Plain& a, const Ints& dims, bool keeps, double start, const Join& join) {
  Shape kept = a.shape;
  for (const std::int64_t dim : dims) kept.at(static_cast<std::size_t>(dim)) = 1;
  std::vector<double> data(static_cast<std::size_t>(elements_of(kept)), start);
  for (std::int64_t i = 0; i < elements_of(a.shape); ++i) {
    double& into = data.at(place_in(kept, a.shape, i));
    into = join(into, a.data[static_cast<std::size_t>(i)]);
  }
  Shape shape;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const bool is_folded = std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) != dims.end();
    if (keeps || !is_folded) shape.push_back(kept[i]);
  }
  return plain_value(std::move(shape), std::move(data));
}

inline double plus(double a, double b) { return a + b; }
inline double larger(double a, double b) { return std::max(a, b); }

inline Value total(const Plain& a, const Ints& dims, bool keeps) { return folded(a, dims, keeps, 0, plus); }
inline Value most(const Plain& a, const Ints& dims, bool keeps) {
  return folded(a, dims, keeps, -std::numeric_limits<double>::infinity(), larger);
}

/// Mean and variance by the count of elements, with reduced dimensions of one row.
inline std::pair<Value, Value> moments_of(const Plain& a, const Ints& dims) {
  const Value sum = total(a, dims, true);
  const double count = static_cast<double>(a.data.size()) / static_cast<double>(plain(sum).data.size());
  const auto by_count = [count](double value) { return value / count; };
  const Value mean = mapped(plain(sum), by_count);
  const Value off = combined(a, plain(mean), [](double x, double m) { return (x - m) * (x - m); });
  return {mean, mapped(plain(total(plain(off), dims, true)), by_count)};
}

inline Value soft_maximum(const Plain& a, std::int64_t dim) {
  const Value highest = most(a, {dim}, true);
  const Value weights = combined(a, plain(highest), [](double x, double m) { return std::exp(x - m); });
  const Value sum = total(plain(weights), {dim}, true);
  return combined(plain(weights), plain(sum), [](double w, double s) { return w / s; });
}

/// [..., k] and [p, k]: [..., p]
inline Value product(const Plain& input, const Plain& weight) {
  const auto length = static_cast<std::size_t>(input.shape.back());
  Shape shape = input.shape;
  shape.back() = weight.shape.front();
  std::vector<double> data;
  for (std::size_t row = 0; row < input.data.size(); row += length) {
    for (std::size_t column = 0; column < weight.data.size(); column += length) {
      double sum = 0;
      for (std::size_t i = 0; i < length; ++i) sum += input.data[row + i] * weight.data[column + i];
      data.push_back(sum);
    }
  }
  return plain_value(std::move(shape), std::move(data));
}

/// Computes an operator that the rules for states use, or softmax; none for other operators.
inline std::optional<std::vector<Value>> try_math(const Node& node, std::span<const Value> operands) {
  const auto integer = [&](std::size_t i) { return std::get<std::int64_t>(node.args.at(i)); };
  const auto ints = [&](std::size_t i) { return std::get<Ints>(node.args.at(i)); };
  const auto truth = [&](std::size_t i) { return std::get<bool>(node.args.at(i)); };
  const Plain& self = plain(operands.front());
  const auto with_other = [&](const Join& join) -> std::vector<Value> {
    const Plain number({}, {operands.size() > 1 ? 0 : std::get<double>(node.args.at(1))});
    return {combined(self, operands.size() > 1 ? plain(operands[1]) : number, join)};
  };
  const auto one = [](Value made) { return std::vector<Value>{std::move(made)}; };
  if (node.op == "aten::sum") return one(total(self, ints(1), truth(2)));
  if (node.op == "aten::amax") return one(most(self, ints(1), truth(2)));
  if (node.op == "aten::amin") {
    const auto negative = [](double x) { return -x; };
    return one(mapped(plain(most(plain(mapped(self, negative)), ints(1), truth(2))), negative));
  }
  if (node.op == "aten::var_mean") {
    const auto [mean, variance] = moments_of(self, ints(1));
    return std::vector<Value>{variance, mean};
  }
  if (node.op == "aten::add") return with_other(plus);
  if (node.op == "aten::sub") return with_other([](double a, double b) { return a - b; });
  if (node.op == "aten::mul") return with_other([](double a, double b) { return a * b; });
  if (node.op == "aten::div") return with_other([](double a, double b) { return a / b; });
  if (node.op == "aten::exp") return one(mapped(self, [](double x) { return std::exp(x); }));
  if (node.op == "aten::log") return one(mapped(self, [](double x) { return std::log(x); }));
  if (node.op == "aten::sqrt") return one(mapped(self, [](double x) { return std::sqrt(x); }));
  if (node.op == "aten::rsqrt") return one(mapped(self, [](double x) { return 1 / std::sqrt(x); }));
  if (node.op == "aten::linear") return one(product(self, plain(operands[1])));
  if (node.op == "aten::clamp") {
    const double low = std::get<double>(node.args.at(1));
    const auto* high = std::get_if<double>(&node.args.at(2));
    const double highest = high == nullptr ? std::numeric_limits<double>::infinity() : *high;
    return one(mapped(self, [=](double x) { return std::clamp(x, low, highest); }));
  }
  if (node.op == "aten::reshape") return one(plain_value(ints(1), self.data));
  if (node.op == "aten::select") {
    const Value row = picked(self, integer(1), {integer(2)});
    Shape shape = plain(row).shape;
    shape.erase(shape.begin() + integer(1));
    return one(plain_value(std::move(shape), plain(row).data));
  }
  if (node.op == "aten::stack") {
    std::vector<Value> rows;
    for (const Value& each : operands) {
      Shape shape = plain(each).shape;
      shape.insert(shape.begin() + integer(1), 1);
      rows.push_back(plain_value(std::move(shape), plain(each).data));
    }
    return one(concatenated(rows, integer(1)));
  }
  if (node.op == "aten::softmax") return one(soft_maximum(self, integer(1)));
  return std::nullopt;
}

}  // namespace atl::infer::test
