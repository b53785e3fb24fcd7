// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that reorder, repeat and compare rows along a dimension.
namespace atl::infer::operators {
namespace {

// (self, dims)
Made flip(const CallView& view) {
  view.require_arguments(2);
  static_cast<void>(view.dims(1, view.tensor(0).shape.size()));
  return with_copies(view, seen(view, view.tensor(0), view.tensor(0).shape));
}

std::optional<NodeSplit> split_flip(const NodeView& view, int output_dim) {
  const std::vector<int> dims = view.dims(1, view.tensor(0).shape.size());
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || std::find(dims.begin(), dims.end(), output_dim) == dims.end()) return split;
  return block_rows(view, output_dim, maps::Flip{});
}

// (self, shifts, dims): without dims over all elements as one row, which is not split.
struct Roll {
  Ints shifts;
  std::vector<int> dims;
};

Roll read_roll(const ArgumentReader& reader) {
  reader.require_arguments(3);
  const Tensor& self = reader.tensor(0);
  Roll roll{reader.integers(1, -kMaxAdmittedRows, kMaxAdmittedRows), reader.dims(2, self.shape.size())};
  reader.require(roll.shifts.size() == std::max<std::size_t>(roll.dims.size(), 1),
                 "it must have one shift for each dimension");
  return roll;
}

Made roll(const CallView& view, const Roll& /*call*/) {
  return with_copies(view, seen(view, view.tensor(0), view.tensor(0).shape));
}

std::optional<NodeSplit> split_roll(const NodeView& view, const Roll& call, int output_dim) {
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || call.dims.empty()) return std::nullopt;
  std::int64_t shift = 0;
  for (std::size_t i = 0; i < call.dims.size(); ++i) {
    if (call.dims[i] == output_dim) shift += call.shifts[i];
  }
  if (shift == 0) return split;
  return block_rows(view, output_dim, maps::Wrap{shift});
}

SlicedCall slice_roll(const NodeView& view, Roll rolled, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (!std::holds_alternative<maps::Wrap>(split.operands[0].map)) return call;
  if (call.operands[0].rows.size() == view.output_rows(output_dim)) {  // all rows, in their own order
    call.keep = rows;
    return call;
  }
  for (std::size_t i = 0; i < rolled.dims.size(); ++i) {
    if (rolled.dims[i] == output_dim) rolled.shifts[i] = 0;
  }
  call.changes.push_back({1, rolled.shifts});
  return call;
}

// (self, repeats, dim, output_size)
Made repeat_interleave(const CallView& view) {
  view.require_arguments(4);
  Shape shape = view.tensor(0).shape;
  const std::int64_t times = view.integer(1, 1, kMaxAdmittedRows);
  const auto dim = static_cast<std::size_t>(view.dim(2, shape.size()));
  view.require(shape[dim] <= kMaxAdmittedRows / times, "it repeats too many times");
  shape[dim] *= times;
  static_cast<void>(view.try_integer(3, shape[dim], shape[dim]));
  return with_copies(view, seen(view, view.tensor(0), std::move(shape)));
}

// (self, n, dim, prepend, append): rows may first be added before and after.
struct Differences {
  int dim = 0;
  std::int64_t times = 1;
  Shape made;
};

Differences read_differences(const ArgumentReader& reader) {
  reader.require_arguments(5);
  const Tensor& self = reader.tensor(0);
  Differences call{reader.dim(2, self.shape.size()), 1, self.shape};
  std::int64_t& rows = call.made[static_cast<std::size_t>(call.dim)];
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    const Tensor* more = reader.try_tensor(argument);
    if (more == nullptr) continue;
    reader.require(more->dtype == self.dtype && more->shape.size() == self.shape.size(),
                   "the rows to join have another type");
    reader.require(with_rows(more->shape, call.dim, at(self.shape, call.dim)) == self.shape,
                   "the rows to join do not fit");
    rows += at(more->shape, call.dim);
  }
  call.times = reader.integer(1, 1, 16);
  reader.require(call.times < rows, "it has too few rows");
  rows -= call.times;
  return call;
}

Made differences(const CallView& view, const Differences& call) {
  Made made = with_copies(view, seen(view, view.tensor(0), call.made));
  made.workspace_bytes *= 2;
  made.operations *= static_cast<double>(call.times);
  return made;
}

std::optional<NodeSplit> split_differences(const NodeView& view, const Differences& call, int output_dim) {
  if (view.operands() != 1) return std::nullopt;
  if (call.dim != output_dim) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (view.output_rows(call.dim) != at(call.made, call.dim)) return std::nullopt;
  return block_rows(view, call.dim, maps::Window{call.times + 1, 1, 0, 1});
}

// (tensors[, indexing]): one grid for each.
Made meshgrid(const CallView& view, bool has_indexing) {
  view.require_arguments(has_indexing ? 2 : 1);
  const std::vector<const Tensor*> tensors = view.tensors(0);
  view.require(!tensors.empty(), "it lacks an axis");
  const std::string indexing = has_indexing ? view.text(1) : "ij";
  view.require(indexing == "ij" || indexing == "xy", "its indexing must be ij or xy");
  Shape shape;
  for (const Tensor* tensor : tensors) {
    view.require(tensor->shape.size() <= 1 && tensor->dtype == tensors.front()->dtype,
                 "its axes must be vectors of one type");
    shape.push_back(tensor->shape.empty() ? 1 : tensor->shape[0]);
  }
  if (indexing == "xy" && shape.size() > 1) std::swap(shape[0], shape[1]);
  Made made;
  made.is_list = true;
  made.outputs.assign(tensors.size(), {tensors.front()->dtype, view.bounded(shape)});
  made.operations = kMove * count_of(shape) * static_cast<double>(tensors.size());
  return made;
}

// (self, dim); returns the dimension.
int read_glu(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0, kFloats);
  const int dim = reader.dim(1, self.shape.size());
  reader.require(at(self.shape, dim) % 2 == 0, "it must have an even number of rows");
  return dim;
}

Made glu(const CallView& view) {
  view.require_arguments(2);
  const int dim = read_glu(view);
  const Tensor& self = view.tensor(0);
  return with_copies(view, seen(view, self, with_rows(self.shape, dim, at(self.shape, dim) / 2)));
}

Made with_places(Made made, bool values) {
  const Tensor places{Dtype::kInt64, made.outputs.front().shape};
  if (!values) made.outputs.clear();
  made.outputs.push_back(places);
  made.workspace_bytes += 3 * bytes_in(places);
  return made;
}

// (self, k, dim, largest, sorted); returns the dimension.
int read_topk(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0, kNumbers);
  const int dim = reader.dim(2, self.shape.size());
  static_cast<void>(reader.integer(1, 1, at(self.shape, dim)));
  static_cast<void>(reader.boolean(3));
  static_cast<void>(reader.boolean(4));
  return dim;
}

Made topk(const CallView& view) {
  view.require_arguments(5);
  const int dim = read_topk(view);
  const Tensor& self = view.tensor(0);
  Made made = with_copies(view, seen(view, self, with_rows(self.shape, dim, view.integer(1))));
  made.workspace_bytes += count_of(self.shape) * 16;
  made.operations = 16 * kMove * count_of(self.shape);
  return with_places(std::move(made), true);
}

// (self, dim, descending); "stable" has (self, stable, dim, descending). Returns the dimension.
int read_sort(const ArgumentReader& reader, bool stable) {
  const Tensor& self = reader.tensor(0, kNumbers);
  const int dim = reader.dim(stable ? 2 : 1, self.shape.size());
  static_cast<void>(reader.boolean(stable ? 3 : 2));
  return dim;
}

Operator sort_operator(bool stable, bool values) {
  return {[=](const CallView& view) {
            view.require_arguments(stable ? 4 : 3);
            if (stable && !view.is_null(1)) static_cast<void>(view.boolean(1));
            view.require(!stable || values || !view.is_null(1), "it lacks the argument stable");
            static_cast<void>(read_sort(view, stable));
            const Tensor& self = view.tensor(0);
            Made made = with_copies(view, seen(view, self, self.shape));
            made.operations *= 32;
            return with_places(std::move(made), values);
          },
          unless_along([=](const NodeView& view) { return read_sort(view, stable); })};
}

}  // namespace

void add_orders(Table& table) {
  table["aten::flip"] = {flip, {split_flip}};
  table["aten::roll"] = {reading(read_roll, roll), {reading(read_roll, split_roll), reading(read_roll, slice_roll)}};
  table["aten::repeat_interleave.self_int"] = {repeat_interleave};
  table["aten::diff"] = {reading(read_differences, differences), {reading(read_differences, split_differences)}};
  table["aten::meshgrid"] = {[](const CallView& view) { return meshgrid(view, false); }};
  table["aten::meshgrid.indexing"] = {[](const CallView& view) { return meshgrid(view, true); }};
  table["aten::glu"] = {glu, unless_along(read_glu)};
  table["aten::topk"] = {topk, unless_along(read_topk)};
  table["aten::sort"] = sort_operator(false, true);
  table["aten::sort.stable"] = sort_operator(true, true);
  table["aten::argsort"] = sort_operator(false, false);
  table["aten::argsort.stable"] = sort_operator(true, false);
}

}  // namespace atl::infer::operators
