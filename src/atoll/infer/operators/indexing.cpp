// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that select rows by index. Indices are values from the client, which are unknown when a graph is admitted.
// The kernels of index, index_select, gather and embedding compare each index with the size: a wrong one is an error on
// a CPU and ends the process on a GPU. Operators that write by index are not on the list.
namespace atl::infer::operators {
namespace {

constexpr Dtypes kIndices{Dtype::kInt32, Dtype::kInt64};

// (self, indices), as x[:, i, j]: the indices are broadcast against each other and stand where the first of them does.
// If they are not adjacent, the dimensions that they select come first.
struct Indexed {
  Shape picked;  // of the indices together
  Shape made;
  std::size_t entries = 0;  // of the list
  std::size_t first = 0;    // dimension with an index
  bool are_together = true;
};

Indexed read_index(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Tensor& self = reader.tensor(0);
  const std::vector<const Tensor*> indices = reader.optional_tensors(1);
  reader.require(indices.size() <= self.shape.size(), "it has more indices than its input has dimensions");
  Indexed call;
  for (const Tensor* one_index : indices) {
    if (one_index == nullptr) continue;
    reader.require(kIndices.has(one_index->dtype), "its indices must be int32 or int64");
    call.picked = reader.broadcast(call.picked, one_index->shape);
  }
  const auto is_index = [](const Tensor* index) { return index != nullptr; };
  const auto first = std::find_if(indices.begin(), indices.end(), is_index);
  reader.require(first != indices.end(), "it lacks an index");
  call.entries = indices.size();
  call.first = static_cast<std::size_t>(first - indices.begin());
  call.are_together = std::none_of(std::find_if_not(first, indices.end(), is_index), indices.end(), is_index);
  bool placed = !call.are_together;
  if (placed) call.made = call.picked;
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    if (i >= indices.size() || indices[i] == nullptr) {
      call.made.push_back(self.shape[i]);
    } else if (!placed) {
      call.made.insert(call.made.end(), call.picked.begin(), call.picked.end());
      placed = true;
    }
  }
  return call;
}

Made index(const CallView& view, const Indexed& call) {
  Made made = with_copies(view, one(view, view.tensor(0).dtype, call.made));
  made.workspace_bytes += count_of(call.picked) * 8 * static_cast<double>(call.entries);
  return made;
}

std::optional<NodeSplit> split_index(const NodeView& view, const Indexed& call, int output_dim) {
  if (!call.are_together || view.output_shape() != call.made) return std::nullopt;
  const int before = static_cast<int>(call.first);
  const int rank = static_cast<int>(call.picked.size());
  const int count = static_cast<int>(view.operands()) - 1;
  if (output_dim < before) return same_rows(view, Locality::kRow, output_dim, output_dim);
  if (output_dim >= before + rank) return same_rows(view, Locality::kRow, output_dim - rank + count, output_dim);
  NodeSplit split = whole(view, Locality::kRow);
  for (std::size_t i = 1; i < view.operands(); ++i) {
    const int dim = output_dim - before - (rank - view.rank(i));
    if (!follow_or_whole(split, view, i, dim, output_dim)) return std::nullopt;
  }
  return split;
}

// (self, dim, index); returns the dimension.
int read_index_select(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0);
  reader.require(reader.tensor(2).shape.size() == 1, "its index must be a vector");
  return reader.dim(1, self.shape.size());
}

Made index_select(const CallView& view) {
  view.require_arguments(3);
  static_cast<void>(view.tensor(2, kIndices));
  const int dim = read_index_select(view);
  const Tensor& self = view.tensor(0);
  return with_copies(view, seen(view, self, with_rows(self.shape, dim, view.tensor(2).shape[0])));
}

std::optional<NodeSplit> split_index_select(const NodeView& view, int output_dim) {
  const bool indexed = read_index_select(view) == output_dim;
  return same_rows(view, Locality::kRow, indexed ? 0 : output_dim, output_dim, indexed ? 1 : 0);
}

// (self, dim, index, sparse_grad): the index has the output's shape. Returns the dimension.
int read_gather(const ArgumentReader& reader) {
  reader.require_arguments(4);
  const Shape& self = reader.tensor(0).shape;
  const Tensor& rows = reader.tensor(2);
  const int dim = reader.dim(1, self.size());
  static_cast<void>(reader.boolean(3));
  reader.require(rows.dtype == Dtype::kInt64, "its index must be int64");
  reader.require(rows.shape.size() == self.size(), "its index has the wrong number of dimensions");
  for (std::size_t i = 0; i < self.size(); ++i) {
    reader.require(static_cast<int>(i) == dim || rows.shape[i] <= self[i], "its index is larger than its input");
  }
  return dim;
}

Made gather(const CallView& view, int /*dim*/) {
  return with_copies(view, seen(view, view.tensor(0), view.tensor(2).shape));
}

std::optional<NodeSplit> split_gather(const NodeView& view, int dim, int output_dim) {
  auto split = same_rows(view, Locality::kRow, output_dim, output_dim, 1);
  if (!split || view.output_shape() != view.shape(1)) return std::nullopt;
  if (dim != output_dim) follow(*split, 0, output_dim, maps::Identity{});
  return split;
}

// (weight, indices, padding_idx, scale_grad_by_freq, sparse); returns the shape of the result.
Shape read_embedding(const ArgumentReader& reader) {
  const Tensor& weight = reader.tensor(0);
  Shape shape = reader.tensor(1).shape;
  reader.require(weight.shape.size() == 2, "its weight must be a matrix");
  static_cast<void>(reader.integer(2, -kMaxAdmittedRows, kMaxAdmittedRows));
  static_cast<void>(reader.boolean(3));
  static_cast<void>(reader.boolean(4));
  shape.push_back(weight.shape[1]);
  return shape;
}

Made embedding(const CallView& view) {
  view.require_arguments(5);
  const Tensor& weight = view.tensor(0, kFloats);
  static_cast<void>(view.tensor(1, kIndices));
  return seen(view, weight, read_embedding(view));
}

std::optional<NodeSplit> split_embedding(const NodeView& view, int output_dim) {
  if (view.output_shape() != read_embedding(view)) return std::nullopt;
  const bool width = output_dim == view.output_rank() - 1;
  return same_rows(view, Locality::kRow, width ? 1 : output_dim, output_dim, width ? 0 : 1);
}

// (self, diagonal)
Made triangle(const CallView& view) {
  view.require_arguments(2);
  view.require(view.tensor(0).shape.size() >= 2, "its input must be a matrix");
  static_cast<void>(view.integer(1, -kMaxAdmittedRows, kMaxAdmittedRows));
  return with_copies(view, seen(view, view.tensor(0), view.tensor(0).shape));
}

}  // namespace

void add_indexing(Table& table) {
  table["aten::index.Tensor"] = {reading(read_index, index), {reading(read_index, split_index)}};
  table["aten::index_select"] = {index_select, {split_index_select}};
  table["aten::gather"] = {reading(read_gather, gather), {reading(read_gather, split_gather)}};
  table["aten::embedding"] = {embedding, {split_embedding}};
  for (const char* name : {"aten::triu", "aten::tril"}) table[name] = {triangle};
}

}  // namespace atl::infer::operators
