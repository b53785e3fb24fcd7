// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "atoll/infer/regions.h"

// The rules of PyTorch's operators, by family, and what they share. A rule gives none for whatever does not fit
// together: a graph may come from a stranger, and what cannot be split is computed whole.
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

/// A split that needs all of each operand; `follow` then says of which it needs rows.
NodeSplit whole(const NodeView& view, Locality locality);

/// Rows of operand `operand` along `dim` by `map`.
void follow(NodeSplit& split, std::size_t operand, int dim, RowMap map);

/// The same by identity, if the operand has as many rows along `dim` as the output along `output_dim`; returns whether.
bool follow_same(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim);

/// An operand that is broadcast against the output, dimensions counted from the last: its rows, or all of it where it
/// has none or one that serves all. Returns false if it fits neither way.
bool follow_broadcast(NodeSplit& split, const NodeView& view, std::size_t operand, int output_dim);

/// The first operand's rows along `dim` by identity, the others whole; none if there are not as many.
std::optional<NodeSplit> same_rows(const NodeView& view, Locality locality, int dim, int output_dim);

/// The first operand's rows along `output_dim` by `map`, the others whole.
NodeSplit block_rows(const NodeView& view, int output_dim, RowMap map);

/// Rows of nothing to compute before and behind a part. Libraries multiply matrices of few rows with other kernels, which
/// add up in another order, so parts of few rows would be rounded otherwise than the same rows of the whole.
struct Filling {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

/// So that a product has `least` rows: the part's, each `others` times. Where the whole has no more than these, as many as
/// the whole, with the part in its place.
Filling filling(Region rows, std::int64_t count, std::int64_t others, std::int64_t least);

/// How many elements one row along `dim` has in the output's dimensions from `first` to before `last`; `most` at most.
std::int64_t elements_of_row(const NodeView& view, int dim, int first, int last, std::int64_t most);

/// call_by_rows with zeros as filling in all operands of which it takes rows: those that follow as they are.
SlicedCall filled_call(const NodeView& view, const NodeSplit& split, Region rows, const Filling& filling);

/// Bytes of an element where `dtype` is summed: 4, or 8 for float64 and integers of 64 bits.
std::int64_t sum_bytes(Dtype dtype) noexcept;

/// The list of integers that argument `argument` is, one entry for each of `dims` dimensions: a list of one serves
/// all. Empty: of another length, or an entry is negative or above a million, which no operator here can need.
Ints per_dim(const NodeView& view, std::size_t argument, std::size_t dims);

/// Entry `index`, at least 0, of such a list.
inline std::int64_t at(const Ints& values, int index) { return values[static_cast<std::size_t>(index)]; }

/// `shape` with `rows` along `dim`.
Ints with_rows(const Shape& shape, int dim, std::int64_t rows);

}  // namespace atl::infer
