// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/row_map.h"
#include "atoll/infer/safety/validators.h"

// Operators that join, split and reorder rows.
namespace atl::infer::safety {
namespace {

std::vector<Operand> types_of(const std::vector<const Tensor*>& tensors) {
  std::vector<Operand> types;
  for (const Tensor* tensor : tensors) types.push_back({tensor->dtype, tensor->shape, false});
  return types;
}

// For compatibility, PyTorch skips an operand of shape [0].
bool is_skipped(const Tensor& tensor) { return tensor.shape == Shape{0}; }

// (tensors, dim)
Made cat(const CallView& view) {
  view.require_arguments(2);
  const std::vector<const Tensor*> tensors = view.tensors(0);
  view.require(!tensors.empty(), "it joins nothing");
  const auto first =
      std::find_if_not(tensors.begin(), tensors.end(), [](const Tensor* one) { return is_skipped(*one); });
  Shape shape = (first == tensors.end() ? tensors.front() : *first)->shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  std::int64_t rows = 0;
  for (const Tensor* tensor : tensors) {
    if (is_skipped(*tensor)) continue;
    Shape other = tensor->shape;
    view.require(other.size() == shape.size(), "its operands differ in the number of dimensions");
    rows += other[dim];
    other[dim] = shape[dim];
    view.require(other == shape, "its operands do not fit together");
  }
  shape[dim] = rows;
  return with_copies(view, one(view, result_type(types_of(tensors)), std::move(shape)));
}

// (tensors, dim)
Made stack(const CallView& view) {
  view.require_arguments(2);
  const std::vector<const Tensor*> tensors = view.tensors(0);
  view.require(!tensors.empty(), "it joins nothing");
  for (const Tensor* tensor : tensors)
    view.require(tensor->shape == tensors.front()->shape, "its operands differ in shape");
  Shape shape = tensors.front()->shape;
  shape.insert(shape.begin() + view.dim(1, shape.size() + 1), static_cast<std::int64_t>(tensors.size()));
  return with_copies(view, one(view, result_type(types_of(tensors)), std::move(shape)));
}

// Rows from `start` to `end` in steps, of `rows`; the arguments are start, end and step.
std::int64_t sliced_rows(const CallView& view, std::size_t argument, std::int64_t rows) {
  const auto bound = [&](std::size_t place, std::int64_t fallback) {
    const std::int64_t value = view.try_integer(place, -kIntegerBound, kIntegerBound).value_or(fallback);
    return std::clamp<std::int64_t>(value < 0 ? value + rows : value, 0, rows);
  };
  const std::int64_t start = bound(argument, 0);
  const std::int64_t end = std::max(start, bound(argument + 1, rows));
  return ceil_div(end - start, view.integer(argument + 2, 1, kMaxAdmittedRows));
}

// (self, dim, start, end, step)
Made slice_rows(const CallView& view) {
  view.require_arguments(5);
  Shape shape = view.tensor(0).shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  shape[dim] = sliced_rows(view, 2, shape[dim]);
  return seen(view, view.tensor(0), std::move(shape));
}

// (self, src, dim, start, end, step)
Made slice_scatter(const CallView& view) {
  view.require_arguments(6);
  const Tensor& self = view.tensor(0);
  Shape part = self.shape;
  const auto dim = static_cast<std::size_t>(view.dim(2, part.size()));
  part[dim] = sliced_rows(view, 3, part[dim]);
  view.require(view.tensor(1) == Tensor{self.dtype, part}, "the rows to insert do not fit");
  return seen(view, self, self.shape);
}

// (self, src, dim, index)
Made select_scatter(const CallView& view) {
  view.require_arguments(4);
  const Tensor& self = view.tensor(0);
  Shape part = self.shape;
  const int dim = view.dim(2, part.size());
  const std::int64_t rows = part[static_cast<std::size_t>(dim)];
  static_cast<void>(view.integer(3, -rows, rows - 1));
  part.erase(part.begin() + dim);
  view.require(view.tensor(1) == Tensor{self.dtype, part}, "the rows to insert do not fit");
  return seen(view, self, self.shape);
}

// (self, dim, start, length)
Made narrow(const CallView& view) {
  view.require_arguments(4);
  Shape shape = view.tensor(0).shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  const std::int64_t rows = shape[dim];
  const std::int64_t start = view.integer(2, -rows, rows);
  shape[dim] = view.integer(3, 0, rows - (start < 0 ? start + rows : start));
  return seen(view, view.tensor(0), std::move(shape));
}

// (self, dim, index)
Made select(const CallView& view) {
  view.require_arguments(3);
  Shape shape = view.tensor(0).shape;
  const int dim = view.dim(1, shape.size());
  const std::int64_t rows = shape[static_cast<std::size_t>(dim)];
  static_cast<void>(view.integer(2, -rows, rows - 1));
  shape.erase(shape.begin() + dim);
  return seen(view, view.tensor(0), std::move(shape));
}

// A list of parts with the given numbers of rows.
Made parted(const CallView& view, std::size_t dim, const Ints& rows) {
  Made made;
  made.is_list = true;
  Shape shape = view.tensor(0).shape;
  for (const std::int64_t count : rows) {
    shape[dim] = count;
    made.outputs.push_back({view.tensor(0).dtype, shape});
  }
  made.operations = kMove * count_of(view.tensor(0).shape);
  return made;
}

void require_few(const CallView& view, std::int64_t parts) {
  view.require(parts <= static_cast<std::int64_t>(kMaxArguments), "it makes more parts than a node can have outputs");
}

// (self, dim)
Made unbind(const CallView& view) {
  view.require_arguments(2);
  Shape shape = view.tensor(0).shape;
  const int dim = view.dim(1, shape.size());
  const std::int64_t rows = shape[static_cast<std::size_t>(dim)];
  require_few(view, rows);
  shape.erase(shape.begin() + dim);
  Made made;
  made.is_list = true;
  made.outputs.assign(static_cast<std::size_t>(rows), {view.tensor(0).dtype, shape});
  made.operations = kMove * count_of(view.tensor(0).shape);
  return made;
}

Made split_evenly(const CallView& view, std::size_t dim, std::int64_t size) {
  const std::int64_t rows = view.tensor(0).shape[dim];
  require_few(view, ceil_div(rows, size));
  Ints parts;
  for (std::int64_t begin = 0; begin < rows; begin += size) parts.push_back(std::min(size, rows - begin));
  return parted(view, dim, parts);
}

// (self, split_size, dim)
Made split(const CallView& view) {
  view.require_arguments(3);
  const auto dim = static_cast<std::size_t>(view.dim(2, view.tensor(0).shape.size()));
  return split_evenly(view, dim, view.integer(1, 1, kMaxAdmittedRows));
}

// (self, chunks, dim)
Made chunk(const CallView& view) {
  view.require_arguments(3);
  const auto dim = static_cast<std::size_t>(view.dim(2, view.tensor(0).shape.size()));
  return split_evenly(view, dim, ceil_div(view.tensor(0).shape[dim], view.integer(1, 1, kMaxAdmittedRows)));
}

// (self, split_sizes, dim)
Made split_with_sizes(const CallView& view) {
  view.require_arguments(3);
  const auto dim = static_cast<std::size_t>(view.dim(2, view.tensor(0).shape.size()));
  const Ints sizes = view.integers(1, 0, kMaxAdmittedRows);
  std::int64_t rows = 0;
  for (const std::int64_t size : sizes) rows += size;
  view.require(!sizes.empty() && rows == view.tensor(0).shape[dim], "its parts must cover its input");
  return parted(view, dim, sizes);
}

// (self, dims)
Made flip(const CallView& view) {
  view.require_arguments(2);
  static_cast<void>(view.dims(1, view.tensor(0).shape.size()));
  return with_copies(view, seen(view, view.tensor(0), view.tensor(0).shape));
}

// (self, shifts, dims): without dims over all elements as one row.
Made roll(const CallView& view) {
  view.require_arguments(3);
  const Tensor& self = view.tensor(0);
  const Ints shifts = view.integers(1, -kMaxAdmittedRows, kMaxAdmittedRows);
  const std::vector<int> dims = view.dims(2, self.shape.size());
  view.require(shifts.size() == std::max<std::size_t>(dims.size(), 1), "it must have one shift for each dimension");
  return with_copies(view, seen(view, self, self.shape));
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
Made differences(const CallView& view) {
  view.require_arguments(5);
  const Tensor& self = view.tensor(0);
  Shape shape = self.shape;
  const auto dim = static_cast<std::size_t>(view.dim(2, shape.size()));
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    const Tensor* more = view.try_tensor(argument);
    if (more == nullptr) continue;
    view.require(more->dtype == self.dtype && more->shape.size() == shape.size(), "the rows to join have another type");
    Shape joined = more->shape;
    joined[dim] = self.shape[dim];
    view.require(joined == self.shape, "the rows to join do not fit");
    shape[dim] += more->shape[dim];
  }
  const std::int64_t times = view.integer(1, 1, 16);
  view.require(times < shape[dim], "it has too few rows");
  shape[dim] -= times;
  Made made = with_copies(view, seen(view, self, std::move(shape)));
  made.workspace_bytes *= 2;
  made.operations *= static_cast<double>(times);
  return made;
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

// (self, dim)
Made glu(const CallView& view) {
  view.require_arguments(2);
  const Tensor& self = view.tensor(0, kFloats);
  Shape shape = self.shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  view.require(shape[dim] % 2 == 0, "it must have an even number of rows");
  shape[dim] /= 2;
  return with_copies(view, seen(view, self, std::move(shape)));
}

}  // namespace

void add_part_validators(Operators& operators) {
  operators["aten::cat"] = {cat, true};
  operators["aten::stack"] = {stack, true};
  operators["aten::slice.Tensor"] = {slice_rows, true};
  operators["aten::slice_scatter"] = {slice_scatter};
  operators["aten::select_scatter"] = {select_scatter};
  operators["aten::narrow"] = {narrow, true};
  operators["aten::select.int"] = {select};
  operators["aten::unbind.int"] = {unbind};
  operators["aten::split.Tensor"] = {split};
  operators["aten::split.sizes"] = {split_with_sizes};
  operators["aten::split_with_sizes"] = {split_with_sizes};
  operators["aten::chunk"] = {chunk};
  operators["aten::flip"] = {flip};
  operators["aten::roll"] = {roll};
  operators["aten::repeat_interleave.self_int"] = {repeat_interleave};
  operators["aten::diff"] = {differences};
  operators["aten::meshgrid"] = {[](const CallView& view) { return meshgrid(view, false); }};
  operators["aten::meshgrid.indexing"] = {[](const CallView& view) { return meshgrid(view, true); }};
  operators["aten::glu"] = {glu};
}

}  // namespace atl::infer::safety
