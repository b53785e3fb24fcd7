// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "atoll/infer/rules/rules.h"

// Operators that rearrange the same elements: views, and those that move, add, drop or repeat dimensions.
namespace atl::infer {
namespace {

std::int64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{1}, std::multiplies<>());
}

// If equally many elements precede both dimensions, a row of one is a number of whole rows of the other, or a part of
// one.
struct Match {
  int dim;  // in the operand
  std::int64_t times;
  std::int64_t over;
};

std::optional<Match> match(const Shape& from, const Shape& to, int output_dim) {
  const auto o = static_cast<std::size_t>(output_dim);
  const std::int64_t elements = product(from, 0, from.size());
  if (elements == 0 || elements != product(to, 0, to.size())) return std::nullopt;
  const std::int64_t before = product(to, 0, o);
  const std::int64_t below = product(to, o + 1, to.size());  // elements of a row
  std::optional<Match> found;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (product(from, 0, i) != before) continue;
    const std::int64_t mine = product(from, i + 1, from.size());
    if (mine == below) return Match{static_cast<int>(i), 1, 1};
    // Of dimensions that begin at the same element, all but the last have one row.
    if (from[i] == 1 || to[o] == 1) continue;
    if (below % mine == 0) found = Match{static_cast<int>(i), below / mine, 1};
    if (mine % below == 0) found = Match{static_cast<int>(i), 1, mine / below};
  }
  return found;
}

std::optional<NodeSplit> split_view(const NodeView& view, int output_dim) {
  if (view.operands() != 1) return std::nullopt;
  const auto found = match(view.shape(0), view.output_shape(), output_dim);
  if (!found) return std::nullopt;
  const bool same = found->times == 1 && found->over == 1;
  NodeSplit split = whole(view, same ? Locality::kElement : Locality::kBlock);
  if (same) {
    follow(split, 0, found->dim, maps::Identity{});
  } else {
    follow(split, 0, found->dim, maps::Scale{found->times, found->over});
  }
  return split;
}

// The rows that a slice of a scaled view makes, and those of them that are kept.
std::int64_t cut_view(const NodeSplit& split, Region rows, SlicedCall& call) {
  const auto* scale = std::get_if<maps::Scale>(&split.operands[0].map);
  if (scale == nullptr) return rows.size();
  const Region read = call.operands[0].rows;
  const std::int64_t begin = read.begin * scale->over / scale->times;
  call.keep = {rows.begin - begin, rows.end - begin};
  return read.size() * scale->over / scale->times;
}

// (self, size)
SlicedCall slice_view(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const std::int64_t made = cut_view(split, rows, call);
  call.changes.push_back({1, with_rows(view.output_shape(), output_dim, made)});
  return call;
}

// (self, start_dim, end_dim): no size to change.
SlicedCall slice_flatten(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  cut_view(split, rows, call);
  return call;
}

// (self, dim, sizes)
SlicedCall slice_unflatten(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const std::int64_t made = cut_view(split, rows, call);
  const int first = view.dim(1, view.rank(0));
  const Ints sizes = view.integers(2);
  const int last = first + static_cast<int>(sizes.size());
  if (output_dim >= first && output_dim < last && last <= view.output_rank()) {
    const auto begin = view.output_shape().begin() + first;
    const Shape made_sizes(begin, begin + static_cast<std::ptrdiff_t>(sizes.size()));
    call.changes.push_back({2, with_rows(made_sizes, output_dim - first, made)});
  }
  return call;
}

// `order`: for each dimension of the output, the operand's.
std::optional<NodeSplit> ordered(const NodeView& view, const std::vector<int>& order, int output_dim) {
  if (static_cast<int>(order.size()) != view.output_rank()) return std::nullopt;
  return same_rows(view, Locality::kElement, order[static_cast<std::size_t>(output_dim)], output_dim);
}

std::vector<int> counted(int rank) {
  std::vector<int> order(static_cast<std::size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::optional<NodeSplit> permute(const NodeView& view, int output_dim) {
  return ordered(view, view.dims(1, view.rank(0)), output_dim);
}

std::optional<NodeSplit> transpose(const NodeView& view, int output_dim) {
  std::vector<int> order = counted(view.rank(0));
  const auto a = static_cast<std::size_t>(view.dim(1, view.rank(0)));
  const auto b = static_cast<std::size_t>(view.dim(2, view.rank(0)));
  std::swap(order[a], order[b]);
  return ordered(view, order, output_dim);
}

std::optional<NodeSplit> turn(const NodeView& view, int output_dim) {
  std::vector<int> order = counted(view.rank(0));
  if (order.size() > 2) return std::nullopt;
  std::reverse(order.begin(), order.end());
  return ordered(view, order, output_dim);
}

// (self, source, destination)
std::optional<NodeSplit> move_dims(const NodeView& view, int output_dim) {
  const int rank = view.rank(0);
  const std::vector<int> source = view.dims(1, rank);
  const std::vector<int> destination = view.dims(2, rank);
  if (source.size() != destination.size()) return std::nullopt;
  std::vector<int> order(static_cast<std::size_t>(rank), -1);
  std::vector<int> rest = counted(rank);
  for (std::size_t i = 0; i < source.size(); ++i) {
    order[static_cast<std::size_t>(destination[i])] = source[i];
    std::erase(rest, source[i]);
  }
  auto next = rest.begin();
  for (int& dim : order) {
    if (dim < 0 && next != rest.end()) dim = *next++;
  }
  return ordered(view, order, output_dim);
}

// (self, dim): the overload without dimensions has no rule, because it would drop the split dimension from a slice of
// one row.
std::optional<NodeSplit> squeeze(const NodeView& view, int output_dim) {
  const std::vector<int> dropped = view.dims(1, view.rank(0));
  std::vector<int> order;
  for (const int dim : counted(view.rank(0))) {
    const bool named = std::find(dropped.begin(), dropped.end(), dim) != dropped.end();
    if (!named) order.push_back(dim);
    if (named && view.rows(0, dim) != 1) order.push_back(-1);  // it stays, but would not in a slice of one row
  }
  return ordered(view, order, output_dim);
}

std::optional<NodeSplit> unsqueeze(const NodeView& view, int output_dim) {
  const int added = view.dim(1, view.rank(0) + 1);
  if (output_dim == added) return std::nullopt;
  return same_rows(view, Locality::kElement, output_dim - (output_dim > added ? 1 : 0), output_dim);
}

std::optional<NodeSplit> expand(const NodeView& view, int output_dim) {
  NodeSplit split = whole(view, Locality::kElement);
  if (view.operands() != 1 || view.rank(0) > view.output_rank()) return std::nullopt;
  if (!follow_broadcast(split, view, 0, output_dim)) return std::nullopt;
  return split;
}

// (self, size)
SlicedCall slice_expand(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.changes.push_back({1, with_rows(view.output_shape(), output_dim, rows.size())});
  return call;
}

// (self, repeats)
std::optional<NodeSplit> repeat(const NodeView& view, int output_dim) {
  const Ints repeats = view.integers(1);
  const int dim = output_dim - (view.output_rank() - view.rank(0));
  if (static_cast<int>(repeats.size()) != view.output_rank()) return std::nullopt;
  NodeSplit split = whole(view, Locality::kBlock);
  if (dim < 0) return split;
  const std::int64_t times = repeats[static_cast<std::size_t>(output_dim)];
  const std::int64_t rows = view.rows(0, dim);
  const std::int64_t made = view.output_rows(output_dim);
  if (times < 1 || rows < 1 || made % times != 0 || made / times != rows) return std::nullopt;
  follow(split, 0, dim, maps::Wrap{0});
  return split;
}

SlicedCall slice_repeat(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  Ints repeats = view.integers(1);
  std::int64_t& times = repeats[static_cast<std::size_t>(output_dim)];
  if (split.operands[0].dim < 0) {
    times = rows.size();
  } else {
    const std::int64_t count = view.rows(0, split.operands[0].dim);
    const std::int64_t first = rows.begin / count;
    times = ceil_div(rows.end, count) - first;
    if (times > 1) call.keep = {rows.begin - first * count, rows.end - first * count};
  }
  call.changes.push_back({1, repeats});
  return call;
}

}  // namespace

void add_view_rules(Rules& rules) {
  for (const char* name : {"aten::view", "aten::_unsafe_view", "aten::reshape"}) {
    rules[name] = {split_view, slice_view, {}};
  }
  rules["aten::view.dtype"] = Rule{};  // changes the size of elements
  rules["aten::flatten"] = {split_view, slice_flatten, {}};
  rules["aten::unflatten"] = {split_view, slice_unflatten, {}};
  rules["aten::permute"] = {permute, {}, {}};
  rules["aten::transpose"] = {transpose, {}, {}};
  rules["aten::t"] = {turn, {}, {}};
  rules["aten::movedim"] = {move_dims, {}, {}};
  rules["aten::squeeze.dim"] = {squeeze, {}, {}};
  rules["aten::squeeze.dims"] = {squeeze, {}, {}};
  rules["aten::unsqueeze"] = {unsqueeze, {}, {}};
  rules["aten::expand"] = {expand, slice_expand, {}};
  rules["aten::repeat"] = {repeat, slice_repeat, {}};
}

}  // namespace atl::infer
