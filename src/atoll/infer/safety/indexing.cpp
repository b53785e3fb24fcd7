// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Operators that select rows by index, and those that order rows. Indices are values from the client, which are unknown
// when a graph is admitted. The kernels of index, index_select, gather and embedding compare each index with the size:
// a wrong one is an error on a CPU and ends the process on a GPU. Operators that write by index are not on the list.
namespace atl::infer::safety {
namespace {

constexpr Dtypes kIndices{Dtype::kInt32, Dtype::kInt64};

// If indices are not adjacent, the dimensions that they select come first.
bool stand_together(const std::vector<const Tensor*>& indices) {
  const auto is_index = [](const Tensor* index) { return index != nullptr; };
  const auto first = std::find_if(indices.begin(), indices.end(), is_index);
  const auto end = std::find_if_not(first, indices.end(), is_index);
  return std::none_of(end, indices.end(), is_index);
}

// (self, indices), as x[:, i, j]
Made index(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  const std::vector<const Tensor*> indices = view.optional_tensors(1);
  view.require(indices.size() <= self.shape.size(), "it has more indices than its input has dimensions");
  Shape picked;
  bool any = false;
  for (const Tensor* one_index : indices) {
    if (one_index == nullptr) continue;
    any = true;
    view.require(kIndices.has(one_index->dtype), "its indices must be int32 or int64");
    picked = view.broadcast(picked, one_index->shape);
  }
  view.require(any, "it lacks an index");
  Shape shape;
  bool placed = !stand_together(indices);
  if (placed) shape = picked;
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    if (i >= indices.size() || indices[i] == nullptr) {
      shape.push_back(self.shape[i]);
    } else if (!placed) {
      shape.insert(shape.end(), picked.begin(), picked.end());
      placed = true;
    }
  }
  Made made = with_copies(view, one(view, self.dtype, std::move(shape)));
  made.workspace_bytes += count_of(picked) * 8 * static_cast<double>(indices.size());
  return made;
}

// (self, dim, index)
Made index_select(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const Tensor& rows = view.tensor(2, kIndices);
  view.require(rows.shape.size() == 1, "its index must be a vector");
  Shape shape = self.shape;
  shape.at(static_cast<std::size_t>(view.dim(1, shape.size()))) = rows.shape[0];
  return with_copies(view, seen(view, self, std::move(shape)));
}

// (self, dim, index, sparse_grad)
Made gather(const CallView& view) {
  view.require_arguments(4);
  const Tensor& self = view.tensor(0);
  const Tensor& rows = view.tensor(2);
  const auto dim = static_cast<std::size_t>(view.dim(1, self.shape.size()));
  static_cast<void>(view.boolean(3));
  view.require(rows.dtype == Dtype::kInt64, "its index must be int64");
  view.require(rows.shape.size() == self.shape.size(), "its index has the wrong number of dimensions");
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    view.require(i == dim || rows.shape[i] <= self.shape[i], "its index is larger than its input");
  }
  return with_copies(view, seen(view, self, rows.shape));
}

// (weight, indices, padding_idx, scale_grad_by_freq, sparse)
Made embedding(const CallView& view) {
  view.require_arguments(5);
  const Tensor& weight = view.tensor(0, kFloats);
  const Tensor& rows = view.tensor(1, kIndices);
  view.require(weight.shape.size() == 2, "its weight must be a matrix");
  static_cast<void>(view.integer(2, -kMaxAdmittedRows, kMaxAdmittedRows));
  static_cast<void>(view.boolean(3));
  static_cast<void>(view.boolean(4));
  Shape shape = rows.shape;
  shape.push_back(weight.shape[1]);
  return seen(view, weight, std::move(shape));
}

Made with_places(Made made, bool values) {
  const Tensor places{Dtype::kInt64, made.outputs.front().shape};
  if (!values) made.outputs.clear();
  made.outputs.push_back(places);
  made.workspace_bytes += 3 * bytes_in(places);
  return made;
}

// (self, k, dim, largest, sorted)
Made topk(const CallView& view) {
  view.require_arguments(5);
  const Tensor& self = view.tensor(0, kNumbers);
  Shape shape = self.shape;
  const auto dim = static_cast<std::size_t>(view.dim(2, shape.size()));
  const std::int64_t rows = shape[dim];
  shape[dim] = view.integer(1, 1, rows);
  static_cast<void>(view.boolean(3));
  static_cast<void>(view.boolean(4));
  Made made = with_copies(view, seen(view, self, std::move(shape)));
  made.workspace_bytes += count_of(self.shape) * 16;
  made.operations = 16 * kMove * count_of(self.shape);
  return with_places(std::move(made), true);
}

Made sorted(const CallView& view, std::size_t dim, std::size_t descending, bool values) {
  const Tensor& self = view.tensor(0, kNumbers);
  static_cast<void>(view.dim(dim, self.shape.size()));
  static_cast<void>(view.boolean(descending));
  Made made = with_copies(view, seen(view, self, self.shape));
  made.operations *= 32;
  return with_places(std::move(made), values);
}

// (self, dim, descending); "stable" has (self, stable, dim, descending).
Made sort(const CallView& view, bool stable, bool values) {
  view.require_arguments(stable ? 4 : 3);
  if (stable && !view.is_null(1)) static_cast<void>(view.boolean(1));
  view.require(!stable || values || !view.is_null(1), "it lacks the argument stable");
  return stable ? sorted(view, 2, 3, values) : sorted(view, 1, 2, values);
}

// (self, diagonal)
Made triangle(const CallView& view) {
  view.require_arguments(2);
  view.require(view.tensor(0).shape.size() >= 2, "its input must be a matrix");
  static_cast<void>(view.integer(1, -kMaxAdmittedRows, kMaxAdmittedRows));
  return with_copies(view, seen(view, view.tensor(0), view.tensor(0).shape));
}

}  // namespace

void add_indexing_validators(Operators& operators) {
  operators["aten::index.Tensor"] = {index};
  operators["aten::index_select"] = {index_select};
  operators["aten::gather"] = {gather};
  operators["aten::embedding"] = {embedding};
  operators["aten::topk"] = {topk};
  operators["aten::sort"] = {[](const CallView& view) { return sort(view, false, true); }};
  operators["aten::sort.stable"] = {[](const CallView& view) { return sort(view, true, true); }};
  operators["aten::argsort"] = {[](const CallView& view) { return sort(view, false, false); }};
  operators["aten::argsort.stable"] = {[](const CallView& view) { return sort(view, true, false); }};
  operators["aten::triu"] = {triangle};
  operators["aten::tril"] = {triangle};
}

}  // namespace atl::infer::safety
