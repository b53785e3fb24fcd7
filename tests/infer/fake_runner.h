// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/infer/plain.h"
#include "tests/infer/plain_math.h"

namespace atl::infer::test {

/// Computes a handful of operators so that an element's value never depends on which others are computed with it,
/// except for sums over rows and softmax.
class FakeRunner : public OperatorRunner {
 public:
  class FakeCall final : public Call {
   public:
    explicit FakeCall(Node call) : node(std::move(call)) {}
    const Node node;
  };

  std::unique_ptr<Call> prepare(const Graph& /*graph*/, const Node& node) override {
    return std::make_unique<FakeCall>(node);
  }

  std::vector<Value> run(const Call& call, std::span<const Value> operands, std::span<const Change> changes) override {
    Node node = static_cast<const FakeCall&>(call).node;
    for (const Change& change : changes) node.args.at(change.argument) = change.value;
    ++calls;
    return made_by(node, operands);
  }

  Value from_host(const Tensor& type, const HostBytes& bytes) override {
    if (static_cast<std::int64_t>(bytes.bytes.size()) != type.bytes()) throw std::logic_error("bytes do not fit");
    std::vector<double> data(static_cast<std::size_t>(type.elements()));
    if (!data.empty()) std::memcpy(data.data(), bytes.bytes.data(), bytes.bytes.size());
    return plain_value(type.shape, std::move(data));
  }
  HostBytes to_host(const Value& value) override {
    return {std::as_bytes(std::span<const double>(plain(value).data)), value};
  }
  Tensor type_of(const Value& value) const override { return {Dtype::kFloat64, plain(value).shape}; }
  Value narrow(const Value& value, int dim, Region rows) override {
    return picked(plain(value), dim, counted_rows(rows.begin, rows.end));
  }
  Value join(std::span<const Value> parts, int dim) override { return concatenated(parts, dim); }
  Value pad(const Value& value, int dim, std::int64_t low, std::int64_t high, double fill) override {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(low), -1);
    const auto own = counted_rows(0, plain(value).shape.at(static_cast<std::size_t>(dim)));
    rows.insert(rows.end(), own.begin(), own.end());
    rows.insert(rows.end(), static_cast<std::size_t>(high), -1);
    return picked(plain(value), dim, rows, fill);
  }
  bool wait_until(Deadline) override { return true; }
  std::string device() const override { return "cpu"; }

  int calls = 0;

 private:
  static std::int64_t integer(const Node& node, std::size_t argument, std::int64_t fallback = 0) {
    const auto* value = std::get_if<std::int64_t>(&node.args.at(argument));
    return value == nullptr ? fallback : *value;
  }
  static std::int64_t first(const Node& node, std::size_t argument) {
    return std::get<Ints>(node.args.at(argument))[0];
  }

  static std::vector<Value> made_by(const Node& node, std::span<const Value> operands) {
    if (auto made = try_math(node, operands)) return std::move(*made);
    const Plain& self = plain(operands.front());
    if (node.op == "aten::relu") return {relu(self)};
    if (node.op == "aten::conv1d") return {convolution(node, operands)};
    if (node.op == "aten::cat") return {concatenated(operands, integer(node, 1))};
    if (node.op == "aten::mean") return {mean(self)};
    if (node.op == "aten::slice") return {slice_of(node, self)};
    if (node.op == "aten::flip") {
      std::vector<std::int64_t> rows = counted_rows(0, self.shape.at(static_cast<std::size_t>(first(node, 1))));
      std::reverse(rows.begin(), rows.end());
      return {picked(self, first(node, 1), rows)};
    }
    if (node.op == "aten::split") {
      std::vector<Value> parts;
      const std::int64_t rows = self.shape.at(static_cast<std::size_t>(integer(node, 2)));
      for (std::int64_t at = 0; at < rows; at += integer(node, 1)) {
        parts.push_back(picked(self, integer(node, 2), counted_rows(at, std::min(rows, at + integer(node, 1)))));
      }
      return parts;
    }
    throw std::logic_error("the fake runner does not know " + node.op);
  }

  static Value relu(const Plain& self) {
    std::vector<double> data = self.data;
    for (double& value : data) value = std::max(value, 0.0);
    return plain_value(self.shape, std::move(data));
  }

  static Value mean(const Plain& self) {
    const auto rows = static_cast<std::size_t>(self.shape.at(2));
    std::vector<double> data;
    for (std::size_t begin = 0; begin < self.data.size(); begin += rows) {
      double total = 0;
      for (std::size_t i = begin; i < begin + rows; ++i) total += self.data[i];
      data.push_back(total / static_cast<double>(rows));
    }
    return plain_value({1, self.shape.at(1), 1}, std::move(data));
  }

  static Value slice_of(const Node& node, const Plain& self) {
    const std::int64_t dim = integer(node, 1);
    const std::int64_t rows = self.shape.at(static_cast<std::size_t>(dim));
    const std::int64_t end = std::min(rows, integer(node, 3, rows));
    return picked(self, dim, counted_rows(integer(node, 2), end, integer(node, 4, 1)));
  }

  // (input, weight, bias, stride, padding, dilation, groups)
  static Value convolution(const Node& node, std::span<const Value> operands) {
    const Plain& weight = plain(operands[1]);
    const std::int64_t padding = first(node, 4);
    const std::int64_t inside = plain(operands[0]).shape.at(1);
    std::vector<std::int64_t> padded(static_cast<std::size_t>(padding), -1);
    for (const std::int64_t row : counted_rows(0, plain(operands[0]).shape.at(2))) padded.push_back(row);
    padded.insert(padded.end(), static_cast<std::size_t>(padding), -1);
    const Value input = picked(plain(operands[0]), 2, padded);
    const std::int64_t kernel = weight.shape.at(2);
    const std::int64_t length = static_cast<std::int64_t>(padded.size());
    const std::int64_t rows = (length - first(node, 5) * (kernel - 1) - 1) / first(node, 3) + 1;
    std::vector<double> data;
    for (std::int64_t channel = 0; channel < weight.shape.at(0); ++channel) {
      for (std::int64_t row = 0; row < rows; ++row) {
        double total = operands.size() > 2 ? plain(operands[2]).data.at(static_cast<std::size_t>(channel)) : 0;
        for (std::int64_t c = 0; c < inside; ++c) {
          for (std::int64_t k = 0; k < kernel; ++k) {
            const std::int64_t from = c * length + row * first(node, 3) + k * first(node, 5);
            total += plain(input).data.at(static_cast<std::size_t>(from)) *
                     weight.data.at(static_cast<std::size_t>((channel * inside + c) * kernel + k));
          }
        }
        data.push_back(total);
      }
    }
    return plain_value({1, weight.shape.at(0), rows}, std::move(data));
  }
};

}  // namespace atl::infer::test
