// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

// Operators as their documentation defines them, on tensors with one row per value: the reference for a rule's slices.
namespace atl::infer::test {

using Values = std::vector<double>;
using Int = std::int64_t;

inline Int integer_at(const Node& node, std::size_t argument, std::size_t entry = 0) {
  if (const auto* value = std::get_if<Int>(&node.args.at(argument))) return *value;
  return std::get<Ints>(node.args.at(argument)).at(entry);
}

inline double at(const Values& values, Int index) { return values.at(static_cast<std::size_t>(index)); }
inline Int count(const Values& values) { return static_cast<Int>(values.size()); }

inline Values convolve(const Node& node, const Values& x, const Values& weight) {
  const Int stride = integer_at(node, 3);
  const Int dilation = integer_at(node, 5);
  const Int span = dilation * (count(weight) - 1);
  Int low = 0;
  Int high = 0;
  if (const auto* text = std::get_if<Text>(&node.args.at(4))) {
    if (text->value == "same") low = span / 2, high = span - span / 2;
  } else {
    low = high = integer_at(node, 4);
  }
  Values result;
  for (Int first = -low; first + span < count(x) + high; first += stride) {
    double sum = 0;
    for (Int j = 0; j < count(weight); ++j) {
      const Int row = first + j * dilation;
      if (row >= 0 && row < count(x)) sum += at(x, row) * at(weight, j);
    }
    result.push_back(sum);
  }
  return result;
}

inline Values convolve_transposed(const Node& node, const Values& x, const Values& weight) {
  const Int stride = integer_at(node, 3);
  const Int padding = integer_at(node, 4);
  const Int dilation = integer_at(node, 7);
  const Int rows = (count(x) - 1) * stride - 2 * padding + dilation * (count(weight) - 1) + integer_at(node, 5) + 1;
  Values result(static_cast<std::size_t>(std::max<Int>(0, rows)), 0);
  for (Int i = 0; i < count(x); ++i) {
    for (Int j = 0; j < count(weight); ++j) {
      const Int row = i * stride - padding + j * dilation;
      if (row >= 0 && row < rows) result[static_cast<std::size_t>(row)] += at(x, i) * at(weight, j);
    }
  }
  return result;
}

// Calls `visit` with the first row, the end without and the end with padding of each window.
template <typename Visit>
void each_window(const Node& node, Int rows, Int dilation, bool ceil_mode, Visit visit) {
  const Int kernel = integer_at(node, 1);
  const bool own_stride = std::holds_alternative<Ints>(node.args.at(2)) && std::get<Ints>(node.args.at(2)).empty();
  const Int stride = own_stride ? kernel : integer_at(node, 2);
  const Int padding = integer_at(node, 3);
  const Int span = dilation * (kernel - 1) + 1;
  for (Int first = -padding;; first += stride) {
    const bool fits = first + span <= rows + padding;
    // In ceil_mode a window may pass the end, unless nothing of it but padding is left, or the one before it reached
    // the end.
    const bool passes = ceil_mode && first - stride + span < rows + padding && first < rows;
    if (!fits && !passes) break;
    visit(first, std::min(first + span, rows + padding));
  }
}

inline Values pool_max(const Node& node, const Values& x) {
  const Int dilation = integer_at(node, 4);
  Values result;
  each_window(node, count(x), dilation, std::get<bool>(node.args.at(5)), [&](Int first, Int end) {
    double most = -std::numeric_limits<double>::infinity();
    for (Int row = first; row < end; row += dilation) {
      if (row >= 0 && row < count(x)) most = std::max(most, at(x, row));
    }
    result.push_back(most);
  });
  return result;
}

inline Values pool_mean(const Node& node, const Values& x) {
  const bool counts_padding = std::get<bool>(node.args.at(5));
  Values result;
  each_window(node, count(x), 1, std::get<bool>(node.args.at(4)), [&](Int first, Int end) {
    double sum = 0;
    Int rows = 0;
    for (Int row = std::max<Int>(0, first); row < std::min(end, count(x)); ++row, ++rows) sum += at(x, row);
    result.push_back(sum / static_cast<double>(counts_padding ? end - first : rows));
  });
  return result;
}

inline Values pool_adaptive(const Node& node, const Values& x) {
  const Int rows = integer_at(node, 1);
  Values result;
  for (Int o = 0; o < rows; ++o) {
    const Int begin = o * count(x) / rows;
    const Int end = ((o + 1) * count(x) + rows - 1) / rows;
    double sum = 0;
    for (Int row = begin; row < end; ++row) sum += at(x, row);
    result.push_back(sum / static_cast<double>(end - begin));
  }
  return result;
}

inline double cubic_weight(double distance) {
  constexpr double a = -0.75;
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

inline Values resample(const Node& node, const Values& x) {
  const bool nearest = node.op.find("nearest") != std::string::npos;
  const bool cubic = node.op.find("cubic") != std::string::npos;
  const std::size_t factors = nearest ? 2 : 3;
  const bool aligned = !nearest && std::get<bool>(node.args.at(2));
  const auto* factor = std::get_if<Floats>(&node.args.at(factors));
  Int rows = 0;
  if (factor == nullptr) rows = integer_at(node, 1);
  if (factor != nullptr) rows = static_cast<Int>(static_cast<double>(count(x)) * factor->at(0));
  double scale = factor != nullptr ? 1 / factor->at(0) : static_cast<double>(count(x)) / static_cast<double>(rows);
  if (aligned) scale = rows > 1 ? static_cast<double>(count(x) - 1) / static_cast<double>(rows - 1) : 0;
  const auto clamped = [&](double row) { return at(x, std::clamp<Int>(static_cast<Int>(row), 0, count(x) - 1)); };
  Values result;
  for (Int o = 0; o < rows; ++o) {
    const auto place = static_cast<double>(o);
    if (nearest) {
      result.push_back(clamped(std::floor(place * scale)));
      continue;
    }
    double row = aligned ? place * scale : (place + 0.5) * scale - 0.5;
    if (!cubic) row = std::max(0.0, row);
    const double base = std::floor(row);
    double sum = 0;
    for (int k = cubic ? -1 : 0; k <= (cubic ? 2 : 1); ++k) {
      const double distance = std::abs(row - base - k);
      sum += clamped(base + k) * (cubic ? cubic_weight(distance) : 1 - distance);
    }
    result.push_back(sum);
  }
  return result;
}

inline Values bordered(const Node& node, const Values& x) {
  const Int low = integer_at(node, 1, 0);
  const Int high = integer_at(node, 1, 1);
  Values result;
  for (Int t = -low; t < count(x) + high; ++t) {
    Int row = t;
    if (node.op == "aten::reflection_pad1d") row = t < 0 ? -t : t >= count(x) ? 2 * (count(x) - 1) - t : t;
    if (node.op == "aten::replication_pad1d") row = std::clamp<Int>(t, 0, count(x) - 1);
    const bool outside = node.op == "aten::constant_pad_nd" && (t < 0 || t >= count(x));
    result.push_back(outside ? 7 : at(x, row));
  }
  return result;
}

inline Values sliced(const Node& node, const Values& x) {
  const auto bound = [&](std::size_t argument, Int fallback) {
    if (std::holds_alternative<std::monostate>(node.args.at(argument))) return fallback;
    const Int value = integer_at(node, argument);
    return std::clamp<Int>(value < 0 ? value + count(x) : value, 0, count(x));
  };
  Values result;
  for (Int row = bound(2, 0); row < bound(3, count(x)); row += integer_at(node, 4)) result.push_back(at(x, row));
  return result;
}

inline Values rearranged(const Node& node, const std::vector<Values>& operands) {
  Values x = operands.at(0);
  if (node.op == "aten::flip") std::reverse(x.begin(), x.end());
  if (node.op == "aten::roll" && !x.empty()) {
    const Int shift = ((integer_at(node, 1) % count(x)) + count(x)) % count(x);
    std::rotate(x.begin(), x.end() - shift, x.end());
  }
  if (node.op == "aten::repeat") {
    const Values once = x;
    x.clear();
    for (Int i = integer_at(node, 1, 2); i > 0; --i) x.insert(x.end(), once.begin(), once.end());
  }
  if (node.op == "aten::cat") {
    for (std::size_t i = 1; i < operands.size(); ++i) x.insert(x.end(), operands[i].begin(), operands[i].end());
  }
  if (node.op == "aten::diff") {
    for (std::size_t i = 0; i + 1 < x.size(); ++i) x[i] = x[i + 1] - x[i];
    x.pop_back();
  }
  return x;
}

// Each row is a query and a key with one feature; values are keys.
inline Values attend_causally(const std::vector<Values>& operands) {
  Values result;
  for (Int i = 0; i < count(operands.at(0)); ++i) {
    double weights = 0;
    double sum = 0;
    for (Int j = 0; j <= i && j < count(operands.at(1)); ++j) {
      const double weight = std::exp(at(operands[0], i) * at(operands[1], j));
      weights += weight;
      sum += weight * at(operands.at(2), j);
    }
    result.push_back(sum / weights);
  }
  return result;
}

/// Computes `node` from its operands, in which each value is a row.
inline Values run(const Node& node, const std::vector<Values>& operands) {
  if (node.op == "aten::conv1d") return convolve(node, operands.at(0), operands.at(1));
  if (node.op == "aten::conv_transpose1d") return convolve_transposed(node, operands.at(0), operands.at(1));
  if (node.op == "aten::max_pool1d") return pool_max(node, operands.at(0));
  if (node.op == "aten::avg_pool1d") return pool_mean(node, operands.at(0));
  if (node.op == "aten::adaptive_avg_pool1d") return pool_adaptive(node, operands.at(0));
  if (node.op.find("upsample") != std::string::npos) return resample(node, operands.at(0));
  if (node.op.find("pad") != std::string::npos) return bordered(node, operands.at(0));
  if (node.op == "aten::slice") return sliced(node, operands.at(0));
  if (node.op == "aten::scaled_dot_product_attention") return attend_causally(operands);
  return rearranged(node, operands);
}

/// The same for the rows that `call` asks for: sliced, padded, changed, called and cut.
inline Values run(Node node, const SlicedCall& call, const std::vector<Values>& operands) {
  std::vector<Values> slices;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandSlice& slice = call.operands.at(i);
    Values rows = operands[i];
    if (slice.dim >= 0) rows = Values(rows.begin() + slice.rows.begin, rows.begin() + slice.rows.end);
    slices.push_back(rows);
  }
  for (const Pad& pad : call.pads) {
    Values& rows = slices.at(pad.operand);
    rows.insert(rows.begin(), static_cast<std::size_t>(pad.low), pad.value);
    rows.insert(rows.end(), static_cast<std::size_t>(pad.high), pad.value);
  }
  for (const Change& change : call.changes) node.args.at(change.argument) = change.value;
  const Values made = run(node, slices);
  if (call.keep.begin < 0 || call.keep.end > count(made)) throw std::out_of_range("the call makes too few rows");
  return Values(made.begin() + call.keep.begin, made.begin() + call.keep.end);
}

}  // namespace atl::infer::test
