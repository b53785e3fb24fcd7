// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "atoll/infer/run/runner.h"

namespace atl::infer::test {

/// A tensor of float64 in plain memory.
class Plain final : public DeviceTensor {
 public:
  Plain(Shape sizes, std::vector<double> values) : shape(std::move(sizes)), data(std::move(values)) {}
  const Shape shape;
  const std::vector<double> data;
};

inline const Plain& plain(const Value& value) { return static_cast<const Plain&>(*value); }

inline Value plain_value(Shape shape, std::vector<double> data) {
  return std::make_shared<const Plain>(std::move(shape), std::move(data));
}

/// The number of elements at one index of `dim`, and how often such runs of all indices repeat.
struct Strides {
  std::int64_t outer = 1;
  std::int64_t rows = 1;
  std::int64_t inner = 1;
};
inline Strides strides_of(const Shape& shape, std::int64_t dim) {
  Strides strides;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    (place < dim ? strides.outer : place == dim ? strides.rows : strides.inner) *= shape[i];
  }
  return strides;
}

/// Row i of the result along `dim` is row rows[i] of `from`, or all `fill` where that is below 0.
inline Value picked(const Plain& from, std::int64_t dim, const std::vector<std::int64_t>& rows, double fill = 0) {
  const Strides strides = strides_of(from.shape, dim);
  Shape shape = from.shape;
  shape.at(static_cast<std::size_t>(dim)) = static_cast<std::int64_t>(rows.size());
  std::vector<double> data;
  for (std::int64_t o = 0; o < strides.outer; ++o) {
    for (const std::int64_t row : rows) {
      if (row >= strides.rows) throw std::logic_error("a row that does not exist");
      for (std::int64_t i = 0; i < strides.inner; ++i) {
        const std::int64_t place = (o * strides.rows + row) * strides.inner + i;
        data.push_back(row < 0 ? fill : from.data.at(static_cast<std::size_t>(place)));
      }
    }
  }
  return plain_value(std::move(shape), std::move(data));
}

/// first, first + step, ... below end.
inline std::vector<std::int64_t> counted_rows(std::int64_t first, std::int64_t end, std::int64_t step = 1) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = first; row < end; row += step) rows.push_back(row);
  return rows;
}

inline Value concatenated(std::span<const Value> parts, std::int64_t dim) {
  Shape shape = plain(parts.front()).shape;
  std::int64_t rows = 0;
  for (const Value& part : parts) rows += plain(part).shape.at(static_cast<std::size_t>(dim));
  shape.at(static_cast<std::size_t>(dim)) = rows;
  std::vector<double> data;
  for (std::int64_t o = 0; o < strides_of(shape, dim).outer; ++o) {
    for (const Value& part : parts) {
      const Strides strides = strides_of(plain(part).shape, dim);
      const auto run = static_cast<std::ptrdiff_t>(strides.rows * strides.inner);
      const auto begin = plain(part).data.begin() + static_cast<std::ptrdiff_t>(o) * run;
      data.insert(data.end(), begin, begin + run);
    }
  }
  return plain_value(std::move(shape), std::move(data));
}

}  // namespace atl::infer::test
