// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Operators that rearrange the same elements: they move, add, drop, merge and repeat dimensions.
namespace atl::infer::safety {
namespace {

// Sizes for `elements` elements; one of them may be -1, which is computed from the others.
Shape completed(const CallView& view, Shape sizes, std::int64_t elements) {
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    *open = 1;
    view.require(std::find(sizes.begin(), sizes.end(), -1) == sizes.end(), "only one of its sizes may be -1");
    const std::int64_t known = Tensor{Dtype::kBool, view.bounded(sizes)}.elements();
    view.require(known > 0 && elements % known == 0, "its sizes do not divide its number of elements");
    *open = elements / known;
  }
  Tensor made{Dtype::kBool, view.bounded(std::move(sizes))};
  view.require(made.elements() == elements, "its sizes do not match its number of elements");
  return made.shape;
}

// (self, size)
Made reshape(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  return with_copies(view, seen(view, self, completed(view, view.integers(1, -1, kMaxAdmittedRows), self.elements())));
}

// (self, start_dim, end_dim)
Made flatten(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const int first = view.dim(1, self.shape.size());
  const int end = view.dim(2, self.shape.size());
  view.require(first <= end, "its first dimension must not be after its last one");
  Shape shape(self.shape.begin(), self.shape.begin() + first);
  shape.push_back(
      std::accumulate(self.shape.begin() + first, self.shape.begin() + end + 1, std::int64_t{1}, std::multiplies<>()));
  shape.insert(shape.end(), self.shape.begin() + end + 1, self.shape.end());
  return with_copies(view, seen(view, self, std::move(shape)));
}

// (self, dim, sizes)
Made unflatten(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const int dim = view.dim(1, self.shape.size());
  const Ints sizes = view.integers(2, -1, kMaxAdmittedRows);
  view.require(!sizes.empty(), "it lacks sizes");
  const Shape parts = completed(view, sizes, self.shape[static_cast<std::size_t>(dim)]);
  Shape shape(self.shape.begin(), self.shape.begin() + dim);
  shape.insert(shape.end(), parts.begin(), parts.end());
  shape.insert(shape.end(), self.shape.begin() + dim + 1, self.shape.end());
  return with_copies(view, seen(view, self, std::move(shape)));
}

// `order`: for each dimension of the output, the operand's.
Made ordered(const CallView& view, const std::vector<int>& order) {
  Shape shape;
  for (const int dim : order) shape.push_back(view.tensor(0).shape[static_cast<std::size_t>(dim)]);
  return seen(view, view.tensor(0), std::move(shape));
}

std::vector<int> counted(std::size_t rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Made permute(const CallView& view) {
  view.require_arguments(2);
  const std::vector<int> order = view.dims(1, view.tensor(0).shape.size());
  view.require(order.size() == view.tensor(0).shape.size(), "it must name all dimensions");
  return ordered(view, order);
}

Made transpose(const CallView& view) {
  view.require_arguments(3);
  std::vector<int> order = counted(view.tensor(0).shape.size());
  std::swap(order.at(static_cast<std::size_t>(view.dim(1, order.size()))),
            order.at(static_cast<std::size_t>(view.dim(2, order.size()))));
  return ordered(view, order);
}

Made turn(const CallView& view) {
  view.require_arguments(1);
  std::vector<int> order = counted(view.tensor(0).shape.size());
  view.require(order.size() <= 2, "its input must not have more than two dimensions");
  std::reverse(order.begin(), order.end());
  return ordered(view, order);
}

// (self, source, destination)
Made move_dims(const CallView& view) {
  view.require_arguments(3);
  const std::size_t rank = view.tensor(0).shape.size();
  const std::vector<int> source = view.dims(1, rank);
  const std::vector<int> destination = view.dims(2, rank);
  view.require(source.size() == destination.size(), "its source and destination must name equally many dimensions");
  std::vector<int> order(rank, -1);
  std::vector<int> rest = counted(rank);
  for (std::size_t i = 0; i < source.size(); ++i) {
    order[static_cast<std::size_t>(destination[i])] = source[i];
    std::erase(rest, source[i]);
  }
  auto next = rest.begin();
  for (int& dim : order) {
    if (dim < 0) dim = *next++;
  }
  return ordered(view, order);
}

// Drops the named dimensions that have one row.
Made squeezed(const CallView& view, const std::vector<int>& named) {
  std::vector<int> order;
  for (const int dim : counted(view.tensor(0).shape.size())) {
    const bool dropped = std::find(named.begin(), named.end(), dim) != named.end() &&
                         view.tensor(0).shape[static_cast<std::size_t>(dim)] == 1;
    if (!dropped) order.push_back(dim);
  }
  return ordered(view, order);
}

Made squeeze_all(const CallView& view) {
  view.require_arguments(1);
  return squeezed(view, counted(view.tensor(0).shape.size()));
}

Made squeeze(const CallView& view) {
  view.require_arguments(2);
  return squeezed(view, view.dims(1, view.tensor(0).shape.size()));
}

Made unsqueeze(const CallView& view) {
  view.require_arguments(2);
  Shape shape = view.tensor(0).shape;
  shape.insert(shape.begin() + view.dim(1, shape.size() + 1), 1);
  return seen(view, view.tensor(0), std::move(shape));
}

Made expanded(const CallView& view) {
  const Tensor& self = view.tensor(0);
  Shape shape = view.integers(1, -1, kMaxAdmittedRows);
  view.require(shape.size() >= self.shape.size(), "it must not expand to fewer dimensions");
  const std::size_t added = shape.size() - self.shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < added) {
      view.require(shape[i] >= 0, "a new dimension must have a size");
      continue;
    }
    const std::int64_t rows = self.shape[i - added];
    if (shape[i] < 0) shape[i] = rows;
    view.require(rows == 1 || rows == shape[i], "it can expand only dimensions of one row");
  }
  return seen(view, self, std::move(shape));
}

// (self, size, implicit)
Made expand(const CallView& view) {
  view.require_arguments(3);
  static_cast<void>(view.boolean(2));
  return expanded(view);
}

Made broadcast_to(const CallView& view) {
  view.require_arguments(2);
  return expanded(view);
}

// (self, repeats)
Made repeat(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  Shape shape = view.integers(1, 1, kMaxAdmittedRows);
  view.require(shape.size() >= self.shape.size() && shape.size() <= kMaxDims,
               "its result has an invalid number of dimensions");
  const std::size_t added = shape.size() - self.shape.size();
  for (std::size_t i = added; i < shape.size(); ++i) {
    view.require(self.shape[i - added] <= kMaxAdmittedRows / shape[i], "it repeats too many times");
    shape[i] *= self.shape[i - added];
  }
  return seen(view, self, std::move(shape));
}

// (self, factor)
Made shuffle(const CallView& view, bool finer) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0);
  const std::int64_t factor = view.integer(1, 1, kMaxStep);
  const std::size_t rank = self.shape.size();
  view.require(rank >= 3, "it has no channels");
  Shape shape = self.shape;
  std::int64_t& channels = shape[rank - 3];
  if (finer) {
    view.require(channels % (factor * factor) == 0, "its factor does not divide its channels");
    channels /= factor * factor;
  } else {
    view.require(channels <= kMaxAdmittedRows / (factor * factor), "it makes too many channels");
    channels *= factor * factor;
  }
  for (std::size_t i = rank - 2; i < rank; ++i) {
    view.require(finer ? shape[i] <= kMaxAdmittedRows / factor : shape[i] % factor == 0,
                 "its factor does not divide its rows");
    shape[i] = finer ? shape[i] * factor : shape[i] / factor;
  }
  return with_copies(view, seen(view, self, std::move(shape)));
}

// (self, dimension, size, step): windows, as a new last dimension.
Made unfold(const CallView& view) {
  view.require_arguments(4);
  Shape shape = view.tensor(0).shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  const std::int64_t size = view.integer(2, 1, kMaxAdmittedRows);
  shape[dim] = window_rows(view, shape[dim], 0, size, view.integer(3, 1, kMaxAdmittedRows), 1);
  shape.push_back(size);
  return seen(view, view.tensor(0), std::move(shape));
}

}  // namespace

void add_view_validators(Operators& operators) {
  for (const char* name : {"view", "_unsafe_view", "reshape"}) {
    operators["aten::" + std::string(name)] = {reshape, true};
  }
  operators["aten::flatten.using_ints"] = {flatten, true};
  operators["aten::unflatten.int"] = {unflatten, true};
  operators["aten::permute"] = {permute, true};
  operators["aten::transpose.int"] = {transpose, true};
  operators["aten::t"] = {turn, true};
  operators["aten::movedim.int"] = {move_dims, true};
  operators["aten::movedim.intlist"] = {move_dims, true};
  operators["aten::squeeze"] = {squeeze_all, true};
  operators["aten::squeeze.dim"] = {squeeze, true};
  operators["aten::squeeze.dims"] = {squeeze, true};
  operators["aten::unsqueeze"] = {unsqueeze, true};
  operators["aten::expand"] = {expand, true};
  operators["aten::broadcast_to"] = {broadcast_to, true};
  operators["aten::repeat"] = {repeat};
  operators["aten::pixel_shuffle"] = {[](const CallView& view) { return shuffle(view, true); }};
  operators["aten::pixel_unshuffle"] = {[](const CallView& view) { return shuffle(view, false); }};
  operators["aten::unfold"] = {unfold};
}

}  // namespace atl::infer::safety
