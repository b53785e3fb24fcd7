// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "atoll/core/region.h"

namespace atl::infer {

/// Division that rounds down, or up, for a positive divisor and any dividend.
constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) noexcept { return a / b - (a % b < 0 ? 1 : 0); }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return -floor_div(-a, b); }

/// The rows of an operand with n rows that rows [x, y) of an output are computed from, as data.
namespace maps {

/// [x, y)
struct Identity {};
/// No row: the operator reads only the operand's element type.
struct Nothing {};
/// A convolution: [x s - p, (y - 1) s - p + d (k - 1) + 1)
struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
};
/// A pooling that keeps its own padding, so that it must start on the grid of its strides: [(x - c) s, (y - 1) s - p +
/// k). The first c = p / s (rounded up) rows of the output saw padding in place of existing rows, and are dropped. At
/// least as many rows as the kernel has, if they exist, because operators refuse fewer.
struct Grid {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
};
/// A transposed convolution: the rows that contribute to [x, y), and enough of them for their output to begin at x or
/// before and to end at y or after.
struct Transposed {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
};
/// A resampling, which maps every block of `inputs` rows of the operand to `outputs` rows of the output. Whole blocks
/// are taken, so that a part starts with the same fraction of a row as the whole, and `low` and `high` more blocks on
/// each side. With `overlap` (1 where corners are aligned) each block ends with the first row of the next.
struct Blocks {
  std::int64_t inputs = 1;
  std::int64_t outputs = 1;
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int64_t overlap = 0;
};
/// Views that merge or split dimensions: [floor(x times / over), ceil(y times / over))
struct Scale {
  std::int64_t times = 1;
  std::int64_t over = 1;
};
/// A slice: [start + x step, start + (y - 1) step + 1)
struct Stride {
  std::int64_t start = 0;
  std::int64_t step = 1;
};
/// [x + offset, y + offset)
struct Shift {
  std::int64_t offset = 0;
};
/// Padding by reflection, with `low` rows before the first. Rows that reach over a border begin at it.
struct Reflect {
  std::int64_t low = 0;
};
/// Padding by repeating the outermost row.
struct Replicate {
  std::int64_t low = 0;
};
/// [n - y, n - x)
struct Flip {};
/// [x - shift, y - shift) modulo n; all rows where that wraps around.
struct Wrap {
  std::int64_t shift = 0;
};
/// One of several operands that are concatenated; this one begins at row `offset`.
struct Part {
  std::int64_t offset = 0;
};
/// The keys of causal attention: [0, y)
struct Prefix {};

}  // namespace maps

using RowMap = std::variant<maps::Identity, maps::Nothing, maps::Window, maps::Grid, maps::Transposed, maps::Blocks,
                            maps::Scale, maps::Stride, maps::Shift, maps::Reflect, maps::Replicate, maps::Flip,
                            maps::Wrap, maps::Part, maps::Prefix>;

/// The rows of an operand with `operand_rows` rows that rows `rows` of the output are computed from. Empty for empty
/// rows. Monotone: more rows never need fewer.
Region needed(const RowMap& map, Region rows, std::int64_t operand_rows);

/// The same, including rows of padding before the first and after the last row of the operand.
Region reached(const RowMap& map, Region rows, std::int64_t operand_rows);

/// `reach` divided into the rows that exist and the numbers of rows before and after them.
struct Cut {
  Region rows;
  std::int64_t low = 0;
  std::int64_t high = 0;
  bool operator==(const Cut&) const = default;
};
Cut cut(Region reach, std::int64_t operand_rows);

/// "[2, 5)"
std::string to_string(Region rows);

}  // namespace atl::infer
