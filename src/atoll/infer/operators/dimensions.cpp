// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that move, add, drop and repeat dimensions.
namespace atl::infer::operators {
namespace {

// For each dimension of the output, the operand's; -1: a new one of one row.
using Order = std::vector<int>;

Order counted(const ArgumentReader& reader) {
  Order order(reader.tensor(0).shape.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// (self, dims)
Order read_permute(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const std::size_t rank = reader.tensor(0).shape.size();
  Order order = reader.dims(1, rank);
  reader.require(order.size() == rank, "it must name all dimensions");
  return order;
}

// (self, dim0, dim1)
Order read_transpose(const ArgumentReader& reader) {
  reader.require_arguments(3);
  Order order = counted(reader);
  std::swap(order.at(static_cast<std::size_t>(reader.dim(1, order.size()))),
            order.at(static_cast<std::size_t>(reader.dim(2, order.size()))));
  return order;
}

Order read_turn(const ArgumentReader& reader) {
  reader.require_arguments(1);
  Order order = counted(reader);
  reader.require(order.size() <= 2, "its input must not have more than two dimensions");
  std::reverse(order.begin(), order.end());
  return order;
}

// (self, source, destination)
Order read_move(const ArgumentReader& reader) {
  reader.require_arguments(3);
  Order rest = counted(reader);
  Order order(rest.size(), -1);
  const std::vector<int> source = reader.dims(1, order.size());
  const std::vector<int> destination = reader.dims(2, order.size());
  reader.require(source.size() == destination.size(), "its source and destination must name equally many dimensions");
  for (std::size_t i = 0; i < source.size(); ++i) {
    order[static_cast<std::size_t>(destination[i])] = source[i];
    std::erase(rest, source[i]);
  }
  auto next = rest.begin();
  for (int& dim : order) {
    if (dim < 0 && next != rest.end()) dim = *next++;
  }
  return order;
}

// Drops the named dimensions that have one row.
Order squeezed(const ArgumentReader& reader, const std::vector<int>& named) {
  Order order = counted(reader);
  std::erase_if(order, [&](int dim) {
    return std::find(named.begin(), named.end(), dim) != named.end() && at(reader.tensor(0).shape, dim) == 1;
  });
  return order;
}

// (self, dim)
Order read_squeeze(const ArgumentReader& reader) {
  reader.require_arguments(2);
  return squeezed(reader, reader.dims(1, reader.tensor(0).shape.size()));
}

// (self, dim)
Order read_unsqueeze(const ArgumentReader& reader) {
  reader.require_arguments(2);
  Order order = counted(reader);
  order.insert(order.begin() + reader.dim(1, order.size() + 1), -1);
  return order;
}

Made ordered(const CallView& view, const Order& order) {
  Shape shape;
  for (const int dim : order) shape.push_back(dim < 0 ? 1 : at(view.tensor(0).shape, dim));
  return seen(view, view.tensor(0), std::move(shape));
}

std::optional<NodeSplit> split_ordered(const NodeView& view, const Order& order, int output_dim) {
  if (static_cast<int>(order.size()) != view.output_rank()) return std::nullopt;
  return same_rows(view, Locality::kElement, order[static_cast<std::size_t>(output_dim)], output_dim);
}

template <typename Read>
Operator order_operator(Read read) {
  return {reading(read, ordered), {reading(read, split_ordered)}, true};
}

// A named dimension that stays would not stay in a slice of one row.
std::optional<NodeSplit> split_squeeze(const NodeView& view, int output_dim) {
  Order order = read_squeeze(view);
  for (const int named : view.dims(1, view.shape(0).size())) std::replace(order.begin(), order.end(), named, -1);
  return split_ordered(view, order, output_dim);
}

// (self): without a rule, because it would drop the split dimension from a slice of one row.
Made squeeze_all(const CallView& view) {
  view.require_arguments(1);
  return ordered(view, squeezed(view, counted(view)));
}

// (self, size, ...)
Shape read_expand(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0);
  Shape shape = reader.integers(1, -1, kMaxAdmittedRows);
  reader.require(shape.size() >= self.shape.size(), "it must not expand to fewer dimensions");
  const std::size_t added = shape.size() - self.shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < added) {
      reader.require(shape[i] >= 0, "a new dimension must have a size");
      continue;
    }
    const std::int64_t rows = self.shape[i - added];
    if (shape[i] < 0) shape[i] = rows;
    reader.require(rows == 1 || rows == shape[i], "it can expand only dimensions of one row");
  }
  return shape;
}

// (self, size, implicit)
Made expand(const CallView& view) {
  view.require_arguments(3);
  static_cast<void>(view.boolean(2));
  return seen(view, view.tensor(0), read_expand(view));
}

Made broadcast_to(const CallView& view) {
  view.require_arguments(2);
  return seen(view, view.tensor(0), read_expand(view));
}

std::optional<NodeSplit> split_expand(const NodeView& view, int output_dim) {
  if (view.output_shape() != read_expand(view)) return std::nullopt;
  NodeSplit split = whole(view, Locality::kElement);
  if (!follow_broadcast(split, view, 0, output_dim)) return std::nullopt;
  return split;
}

SlicedCall slice_expand(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.changes.push_back({1, with_rows(view.output_shape(), output_dim, rows.size())});
  return call;
}

// (self, repeats)
struct Repeat {
  Ints times;  // by dimension of the result
  Shape made;
};

Repeat read_repeat(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Tensor& self = reader.tensor(0);
  const Ints times = reader.integers(1, 1, kMaxAdmittedRows);
  reader.require(times.size() >= self.shape.size() && times.size() <= kMaxDims,
                 "its result has an invalid number of dimensions");
  Repeat repeat{times, times};
  const std::size_t added = times.size() - self.shape.size();
  for (std::size_t i = added; i < times.size(); ++i) {
    reader.require(self.shape[i - added] <= kMaxAdmittedRows / times[i], "it repeats too many times");
    repeat.made[i] *= self.shape[i - added];
  }
  return repeat;
}

Made repeat(const CallView& view) { return seen(view, view.tensor(0), read_repeat(view).made); }

std::optional<NodeSplit> split_repeat(const NodeView& view, int output_dim) {
  if (view.output_shape() != read_repeat(view).made) return std::nullopt;
  NodeSplit split = whole(view, Locality::kBlock);
  const int dim = output_dim - (view.output_rank() - view.rank(0));
  if (dim < 0) return split;
  if (view.rows(0, dim) < 1) return std::nullopt;
  follow(split, 0, dim, maps::Wrap{0});
  return split;
}

SlicedCall slice_repeat(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  Repeat repeat = read_repeat(view);
  std::int64_t& times = repeat.times[static_cast<std::size_t>(output_dim)];
  if (split.operands[0].dim < 0) {
    times = rows.size();
  } else {
    const std::int64_t count = view.rows(0, split.operands[0].dim);
    const std::int64_t first = rows.begin / count;
    times = ceil_div(rows.end, count) - first;
    if (times > 1) call.keep = {rows.begin - first * count, rows.end - first * count};
  }
  call.changes.push_back({1, repeat.times});
  return call;
}

}  // namespace

void add_dimensions(Table& table) {
  table["aten::permute"] = order_operator(read_permute);
  table["aten::transpose.int"] = order_operator(read_transpose);
  table["aten::t"] = order_operator(read_turn);
  for (const char* name : {"aten::movedim.int", "aten::movedim.intlist"}) table[name] = order_operator(read_move);
  for (const char* name : {"aten::squeeze.dim", "aten::squeeze.dims"}) {
    table[name] = order_operator(read_squeeze);
    table[name].rule.split = split_squeeze;
  }
  table["aten::squeeze"] = {squeeze_all, {}, true};
  table["aten::unsqueeze"] = order_operator(read_unsqueeze);
  table["aten::expand"] = {expand, {split_expand, slice_expand}, true};
  table["aten::broadcast_to"] = {broadcast_to, {}, true};
  table["aten::repeat"] = {repeat, {split_repeat, slice_repeat}};
}

}  // namespace atl::infer::operators
