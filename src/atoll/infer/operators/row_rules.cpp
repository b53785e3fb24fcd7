// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/row_rules.h"

#include <algorithm>
#include <utility>

namespace atl::infer::operators {

NodeSplit whole(const NodeView& view, Locality locality) {
  NodeSplit split;
  split.locality = locality;
  for (std::size_t i = 0; i < view.operands(); ++i) split.operands.push_back({view.tensor_of(i), -1, {}});
  return split;
}

void follow(NodeSplit& split, std::size_t operand, int dim, RowMap map) {
  split.operands.at(operand).dim = dim;
  split.operands.at(operand).map = map;
}

bool follow_same(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim) {
  if (dim < 0 || dim >= view.rank(operand) || view.rows(operand, dim) != view.output_rows(output_dim)) return false;
  follow(split, operand, dim, maps::Identity{});
  return true;
}

bool follow_or_whole(NodeSplit& split, const NodeView& view, std::size_t operand, int dim, int output_dim) {
  if (dim < 0 || (view.rows(operand, dim) == 1 && view.output_rows(output_dim) != 1)) return true;
  return follow_same(split, view, operand, dim, output_dim);
}

bool follow_broadcast(NodeSplit& split, const NodeView& view, std::size_t operand, int output_dim) {
  return follow_or_whole(split, view, operand, output_dim - (view.output_rank() - view.rank(operand)), output_dim);
}

std::optional<NodeSplit> same_rows(const NodeView& view, Locality locality, int dim, int output_dim,
                                   std::size_t operand) {
  NodeSplit split = whole(view, locality);
  if (operand >= view.operands() || !follow_same(split, view, operand, dim, output_dim)) return std::nullopt;
  return split;
}

std::optional<NodeSplit> split_elements(const NodeView& view, int output_dim) {
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (!follow_broadcast(split, view, i, output_dim)) return std::nullopt;
  }
  return split;
}

NodeSplit block_rows(const NodeView& view, int output_dim, RowMap map) {
  NodeSplit split = whole(view, Locality::kBlock);
  follow(split, 0, output_dim, map);
  return split;
}

Filling filling(Region rows, std::int64_t count, std::int64_t others, std::int64_t least) {
  const std::int64_t wanted = (least + others - 1) / std::max<std::int64_t>(1, others);
  if (wanted >= count) return {rows.begin, count - rows.end};
  return {0, std::max<std::int64_t>(0, wanted - rows.size())};
}

std::int64_t elements_of_row(const NodeView& view, int dim, int first, int last, std::int64_t most) {
  std::int64_t elements = 1;
  for (int i = first; i < last && elements < most; ++i) {
    if (i != dim) elements *= std::min(most, view.output_rows(i));
  }
  return std::min(most, elements);
}

SlicedCall filled_call(const NodeView& view, const NodeSplit& split, Region rows, const Filling& filling) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (filling.low + filling.high == 0) return call;
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    if (split.operands[i].dim >= 0) call.pads.push_back({i, split.operands[i].dim, filling.low, filling.high, 0});
  }
  call.keep = {filling.low, filling.low + rows.size()};
  return call;
}

std::int64_t sum_bytes(Dtype dtype) noexcept { return std::max<std::int64_t>(4, bytes_of(dtype)); }

Ints with_rows(const Shape& shape, int dim, std::int64_t rows) {
  Ints sizes = shape;
  sizes.at(static_cast<std::size_t>(dim)) = rows;
  return sizes;
}

}  // namespace atl::infer::operators
