// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "atoll/infer/regions.h"

// What the rules of several families share.
namespace atl::infer::operators {

/// A split that needs every operand whole; `follow` then selects operands of which it needs only rows.
NodeSplit whole(const NodeView& view, Locality locality);

/// Makes `split` need rows of operand `operand` along `dim` by `map`.
void follow(NodeSplit& split, std::size_t operand, int dim, RowMap map);

/// The same by identity if the operand has as many rows along `dim` as the output has along `output_dim`; returns
/// whether it has.
bool follow_same(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim);

/// The same, or the whole operand if it lacks the dimension (below 0) or has a single row there, as for one that is
/// broadcast. Returns false if its shape does not fit.
bool follow_or_whole(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim);

/// The same for an operand that is broadcast against the output, with dimensions counted from the last.
bool follow_broadcast(NodeSplit& split, const NodeView& view, std::size_t operand, int output_dim);

/// A split by one operand's rows along `dim` by identity, the others whole; none if the numbers of rows differ.
std::optional<NodeSplit> same_rows(const NodeView& view, Locality locality, int dim, int output_dim,
                                   std::size_t operand = 0);

/// A split by the first operand's rows along `output_dim` by `map`, the others whole.
NodeSplit block_rows(const NodeView& view, int output_dim, RowMap map);

/// Rows of all operands, which are broadcast against each other: a rule of operators by element.
std::optional<NodeSplit> split_elements(const NodeView& view, int output_dim);

/// A function of an operator that gets the call's arguments as `read` parses them: function(view, read(view), ...).
template <typename Read, typename Function>
auto reading(Read read, Function function) {
  return [read, function](const auto& view, const auto&... more) { return function(view, read(view), more...); };
}

/// The rule of an operator that works along one dimension, which `read` gives; any other is split by identity.
template <typename Read>
Rule unless_along(Read read) {
  return {[read](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    if (read(view) == output_dim || view.rank(0) != view.output_rank()) return std::nullopt;
    return same_rows(view, Locality::kElement, output_dim, output_dim);
  }};
}

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

/// Entry `index`, at least 0, of a list with one for each dimension.
inline std::int64_t at(const Ints& values, int index) { return values[static_cast<std::size_t>(index)]; }

/// `shape` with `rows` along `dim`.
Ints with_rows(const Shape& shape, int dim, std::int64_t rows);

}  // namespace atl::infer::operators
