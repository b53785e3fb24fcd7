// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "atoll/infer/regions.h"

// The rules of PyTorch's operators, by family, and what they share. A rule returns none for arguments that do not fit
// together: a graph may come from a stranger, and nodes that cannot be split are computed whole.
namespace atl::infer {

using Rules = std::map<std::string, Rule>;

void add_element_rules(Rules& rules);
void add_convolution_rules(Rules& rules);
void add_pool_rules(Rules& rules);
void add_resize_rules(Rules& rules);
void add_view_rules(Rules& rules);
void add_part_rules(Rules& rules);
void add_border_rules(Rules& rules);
void add_product_rules(Rules& rules);
void add_norm_rules(Rules& rules);
void add_reduction_rules(Rules& rules);

/// A split that needs every operand whole; `follow` then selects operands of which it needs only rows.
NodeSplit whole(const NodeView& view, Locality locality);

/// Makes `split` need rows of operand `operand` along `dim` by `map`.
void follow(NodeSplit& split, std::size_t operand, int dim, RowMap map);

/// The same by identity if the operand has as many rows along `dim` as the output has along `output_dim`; returns
/// whether it has.
bool follow_same(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim);

/// The same for an operand that is broadcast against the output, with dimensions counted from the last: its rows, or
/// the whole operand if it lacks the dimension or has a single row there. Returns false if its shape does not fit.
bool follow_broadcast(NodeSplit& split, const NodeView& view, std::size_t operand, int output_dim);

/// A split by the first operand's rows along `dim` by identity, the others whole; none if the numbers of rows differ.
std::optional<NodeSplit> same_rows(const NodeView& view, Locality locality, int dim, int output_dim);

/// A split by the first operand's rows along `output_dim` by `map`, the others whole.
NodeSplit block_rows(const NodeView& view, int output_dim, RowMap map);

/// Rows of zeros before and after a part. Libraries multiply matrices of few rows with other kernels, which add in
/// another order, so small parts would be rounded differently from the same rows of the whole.
struct Filling {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

/// The filling that gives a product at least `least` rows, where each row of the part counts `others` times. If the
/// whole has no more rows than that, the part is filled to the whole's rows, in its own place.
Filling filling(Region rows, std::int64_t count, std::int64_t others, std::int64_t least);

/// The number of elements of one row along `dim` in the output's dimensions [first, last), at most `most`.
std::int64_t elements_of_row(const NodeView& view, int dim, int first, int last, std::int64_t most);

/// call_by_rows with zeros as filling in all operands of which it takes rows, which follow by identity.
SlicedCall filled_call(const NodeView& view, const NodeSplit& split, Region rows, const Filling& filling);

/// Bytes of a sum of elements of `dtype`: 4, or 8 for float64 and 64-bit integers.
std::int64_t sum_bytes(Dtype dtype) noexcept;

/// The list of integers at argument `argument`, with one entry for each of `dims` dimensions; a list of one is
/// repeated. Empty if it has another length, or an entry is negative or above a million, which no operator here needs.
Ints per_dim(const NodeView& view, std::size_t argument, std::size_t dims);

/// Entry `index`, at least 0, of such a list.
inline std::int64_t at(const Ints& values, int index) { return values[static_cast<std::size_t>(index)]; }

/// `shape` with `rows` along `dim`.
Ints with_rows(const Shape& shape, int dim, std::int64_t rows);

}  // namespace atl::infer
