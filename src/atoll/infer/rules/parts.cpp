// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/rules/rules.h"

// Operators that join, split and reorder rows, and those that select rows by index.
namespace atl::infer {
namespace {

// (tensors, dim). For compatibility, PyTorch skips an operand of shape [0].
std::optional<NodeSplit> cat(const NodeView& view, int output_dim) {
  const bool joined = view.dim(1, view.output_rank()) == output_dim;
  NodeSplit split = whole(view, joined ? Locality::kBlock : Locality::kElement);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (view.rank(i) == 1 && view.rows(i, 0) == 0 && view.output_rank() != 1) continue;
    if (view.rank(i) != view.output_rank()) return std::nullopt;
    if (joined) {
      follow(split, i, output_dim, maps::Part{offset});
      offset += view.rows(i, output_dim);
    } else if (!follow_same(split, view, i, output_dim, output_dim)) {
      return std::nullopt;
    }
  }
  if (joined && offset != view.output_rows(output_dim)) return std::nullopt;
  return split;
}

// (tensors, dim)
std::optional<NodeSplit> stack(const NodeView& view, int output_dim) {
  const int added = view.dim(1, view.output_rank());
  if (added == output_dim) return std::nullopt;
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (!follow_same(split, view, i, output_dim - (output_dim > added ? 1 : 0), output_dim)) return std::nullopt;
  }
  return split;
}

// A number of rows counted from the first, or from the last where it is negative.
std::int64_t clamped(std::int64_t value, std::int64_t rows) {
  return std::clamp<std::int64_t>(value < 0 ? value + rows : value, 0, rows);
}

std::optional<NodeSplit> strided(const NodeView& view, int dim, std::int64_t start, std::int64_t end,
                                 std::int64_t step) {
  if (step < 1 || view.output_rows(dim) != ceil_div(std::max(start, end) - start, step)) return std::nullopt;
  return block_rows(view, dim, maps::Stride{start, step});
}

// (self, dim, start, end, step)
std::optional<NodeSplit> slice_rows(const NodeView& view, int output_dim) {
  const int dim = view.dim(1, view.rank(0));
  if (dim != output_dim) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const std::int64_t rows = view.rows(0, dim);
  return strided(view, dim, clamped(view.integer_or(2, 0), rows), clamped(view.integer_or(3, rows), rows),
                 view.integer(4));
}

SlicedCall slice_slice(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (!std::holds_alternative<maps::Stride>(split.operands[0].map)) return call;
  call.changes.push_back({2, std::int64_t{0}});
  call.changes.push_back({3, std::monostate{}});
  return call;
}

// (self, dim, start, length)
std::optional<NodeSplit> narrow(const NodeView& view, int output_dim) {
  const int dim = view.dim(1, view.rank(0));
  if (dim != output_dim) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const std::int64_t start = clamped(view.integer(2), view.rows(0, dim));
  if (start + view.output_rows(dim) > view.rows(0, dim)) return std::nullopt;
  return strided(view, dim, start, start + view.output_rows(dim), 1);
}

SlicedCall slice_narrow(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (!std::holds_alternative<maps::Stride>(split.operands[0].map)) return call;
  call.changes.push_back({2, std::int64_t{0}});
  call.changes.push_back({3, rows.size()});
  return call;
}

// (self, src, dim, ...)
std::optional<NodeSplit> slice_scatter(const NodeView& view, int output_dim) {
  if (view.dim(2, view.output_rank()) == output_dim) return std::nullopt;
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || !follow_same(*split, view, 1, output_dim, output_dim)) return std::nullopt;
  return split;
}

// (self, dim, ...): the dimension `dim` is removed.
std::optional<NodeSplit> select(const NodeView& view, int output_dim) {
  const int dropped = view.dim(1, view.rank(0));
  return same_rows(view, Locality::kElement, output_dim + (output_dim >= dropped ? 1 : 0), output_dim);
}

// The operator works along the dimension that argument `argument` names; any other is split by identity.
Rule unless_along(std::size_t argument) {
  return {[argument](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
            if (view.dim(argument, view.output_rank()) == output_dim) return std::nullopt;
            return same_rows(view, Locality::kElement, output_dim, output_dim);
          },
          {},
          {}};
}

// (self, dims)
std::optional<NodeSplit> flip(const NodeView& view, int output_dim) {
  const std::vector<int> dims = view.dims(1, view.rank(0));
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || std::find(dims.begin(), dims.end(), output_dim) == dims.end()) return split;
  return block_rows(view, output_dim, maps::Flip{});
}

// (self, shifts, dims): without dims over all elements as one row, which is not split.
std::optional<NodeSplit> roll(const NodeView& view, int output_dim) {
  const std::vector<int> dims = view.dims(2, view.rank(0));
  const Ints shifts = view.integers(1);
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || dims.empty() || dims.size() != shifts.size()) return std::nullopt;
  std::int64_t shift = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == output_dim) shift += shifts[i];
  }
  if (shift == 0) return split;
  return block_rows(view, output_dim, maps::Wrap{shift});
}

SlicedCall slice_roll(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (!std::holds_alternative<maps::Wrap>(split.operands[0].map)) return call;
  if (call.operands[0].rows.size() == view.output_rows(output_dim)) {  // all rows, in their own order
    call.keep = rows;
    return call;
  }
  Ints shifts = view.integers(1);
  const std::vector<int> dims = view.dims(2, view.rank(0));
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == output_dim) shifts[i] = 0;
  }
  call.changes.push_back({1, shifts});
  return call;
}

// (self, factor): `times` rows become `over`.
std::optional<NodeSplit> shuffle(const NodeView& view, int output_dim, bool finer) {
  const int rank = view.output_rank();
  const std::int64_t factor = view.integer(1);
  if (rank < 3 || view.rank(0) != rank || factor < 1) return std::nullopt;
  if (output_dim < rank - 3) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (output_dim == rank - 3) return std::nullopt;
  const std::int64_t fine = finer ? view.output_rows(output_dim) : view.rows(0, output_dim);
  const std::int64_t coarse = finer ? view.rows(0, output_dim) : view.output_rows(output_dim);
  if (fine / factor != coarse || fine % factor != 0) return std::nullopt;
  return block_rows(view, output_dim, finer ? maps::Scale{1, factor} : maps::Scale{factor, 1});
}

SlicedCall slice_shuffle(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (const auto* scale = std::get_if<maps::Scale>(&split.operands[0].map)) {
    const std::int64_t begin = call.operands[0].rows.begin * scale->over / scale->times;
    call.keep = {rows.begin - begin, rows.end - begin};
  }
  return call;
}

// (self, n, dim, prepend, append)
std::optional<NodeSplit> differences(const NodeView& view, int output_dim) {
  const int dim = view.dim(2, view.rank(0));
  if (view.operands() != 1) return std::nullopt;
  if (dim != output_dim) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const std::int64_t times = view.integer(1);
  if (times < 0 || view.output_rows(dim) + times != view.rows(0, dim)) return std::nullopt;
  return block_rows(view, dim, maps::Window{times + 1, 1, 0, 1});
}

// (self, dim, index): the index has the output's shape.
std::optional<NodeSplit> gather(const NodeView& view, int output_dim) {
  NodeSplit split = whole(view, Locality::kRow);
  if (view.operands() != 2 || view.rank(1) != view.output_rank()) return std::nullopt;
  if (!follow_same(split, view, 1, output_dim, output_dim)) return std::nullopt;
  if (view.dim(1, view.rank(0)) == output_dim) return split;
  if (view.rows(0, output_dim) < view.output_rows(output_dim)) return std::nullopt;
  follow(split, 0, output_dim, maps::Identity{});
  return split;
}

// (self, dim, index)
std::optional<NodeSplit> index_select(const NodeView& view, int output_dim) {
  NodeSplit split = whole(view, Locality::kRow);
  const bool indexed = view.dim(1, view.rank(0)) == output_dim;
  if (view.operands() != 2 || view.rank(1) != 1) return std::nullopt;
  if (!follow_same(split, view, indexed ? 1 : 0, indexed ? 0 : output_dim, output_dim)) return std::nullopt;
  return split;
}

// (self, indices), as x[:, i, j]: the indices are broadcast against each other and stand where the first of them does.
std::optional<NodeSplit> index(const NodeView& view, int output_dim) {
  const auto* list = std::get_if<TensorIds>(&view.argument(1));
  if (list == nullptr || view.operands() < 2 || !view.operand_at(0)) return std::nullopt;
  std::size_t first = 0;
  while (first < list->ids.size() && !list->ids[first]) ++first;
  const std::size_t count = view.operands() - 1;
  int rank = 0;  // of the indices together
  for (std::size_t i = 1; i <= count; ++i) {
    const bool apart = first + i - 1 >= list->ids.size() || !list->ids[first + i - 1];
    const Dtype dtype = view.operand(i).dtype;
    if (apart || dtype == Dtype::kBool || dtype == Dtype::kUint8) return std::nullopt;
    rank = std::max(rank, view.rank(i));
  }
  const int before = static_cast<int>(first);
  if (view.output_rank() != view.rank(0) - static_cast<int>(count) + rank) return std::nullopt;
  if (output_dim < before) return same_rows(view, Locality::kRow, output_dim, output_dim);
  if (output_dim >= before + rank) {
    return same_rows(view, Locality::kRow, output_dim - rank + static_cast<int>(count), output_dim);
  }
  NodeSplit split = whole(view, Locality::kRow);
  for (std::size_t i = 1; i <= count; ++i) {
    const int dim = output_dim - before - (rank - view.rank(i));
    if (dim < 0 || (view.rows(i, dim) == 1 && view.output_rows(output_dim) != 1)) continue;
    if (!follow_same(split, view, i, dim, output_dim)) return std::nullopt;
  }
  return split;
}

}  // namespace

void add_part_rules(Rules& rules) {
  rules["aten::cat"] = {cat, {}, {}};
  rules["aten::stack"] = {stack, {}, {}};
  rules["aten::slice"] = {slice_rows, slice_slice, {}};
  rules["aten::narrow"] = {narrow, slice_narrow, {}};
  rules["aten::narrow.Tensor"] = Rule{};  // the start is known when it runs
  rules["aten::slice_scatter"] = {slice_scatter, {}, {}};
  rules["aten::select"] = {select, {}, {}};
  rules["aten::unbind"] = {select, {}, {}};
  rules["aten::split"] = unless_along(2);
  rules["aten::split_with_sizes"] = unless_along(2);
  rules["aten::chunk"] = unless_along(2);
  rules["aten::glu"] = unless_along(1);
  rules["aten::topk"] = unless_along(2);
  rules["aten::sort"] = unless_along(1);
  rules["aten::argsort"] = unless_along(1);
  rules["aten::sort.stable"] = unless_along(2);
  rules["aten::argsort.stable"] = unless_along(2);
  rules["aten::flip"] = {flip, {}, {}};
  rules["aten::roll"] = {roll, slice_roll, {}};
  rules["aten::pixel_shuffle"] = {
      [](const NodeView& view, int output_dim) { return shuffle(view, output_dim, true); }, slice_shuffle, {}};
  rules["aten::pixel_unshuffle"] = {
      [](const NodeView& view, int output_dim) { return shuffle(view, output_dim, false); }, slice_shuffle, {}};
  rules["aten::diff"] = {differences, {}, {}};
  rules["aten::gather"] = {gather, {}, {}};
  rules["aten::index_select"] = {index_select, {}, {}};
  rules["aten::index.Tensor"] = {index, {}, {}};
}

}  // namespace atl::infer
