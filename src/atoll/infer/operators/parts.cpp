// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that join rows, and those that take some of them.
namespace atl::infer::operators {
namespace {

// Tensors joined along dimension `dim` of the result.
struct Joined {
  std::vector<const Tensor*> tensors;
  int dim = 0;
  Shape made;
};

// For compatibility, PyTorch skips an operand of shape [0].
bool is_skipped(const Tensor& tensor) { return tensor.shape == Shape{0}; }

// (tensors, dim)
Joined read_cat(const ArgumentReader& reader) {
  reader.require_arguments(2);
  Joined joined{reader.tensors(0), 0, {}};
  reader.require(!joined.tensors.empty(), "it joins nothing");
  const auto first = std::find_if_not(joined.tensors.begin(), joined.tensors.end(),
                                      [](const Tensor* one_of) { return is_skipped(*one_of); });
  joined.made = (first == joined.tensors.end() ? joined.tensors.front() : *first)->shape;
  joined.dim = reader.dim(1, joined.made.size());
  const auto dim = static_cast<std::size_t>(joined.dim);
  std::int64_t rows = 0;
  for (const Tensor* tensor : joined.tensors) {
    if (is_skipped(*tensor)) continue;
    Shape other = tensor->shape;
    reader.require(other.size() == joined.made.size(), "its operands differ in the number of dimensions");
    rows += other[dim];
    other[dim] = joined.made[dim];
    reader.require(other == joined.made, "its operands do not fit together");
  }
  joined.made[dim] = rows;
  return joined;
}

// (tensors, dim)
Joined read_stack(const ArgumentReader& reader) {
  reader.require_arguments(2);
  Joined joined{reader.tensors(0), 0, {}};
  reader.require(!joined.tensors.empty(), "it joins nothing");
  joined.made = joined.tensors.front()->shape;
  for (const Tensor* tensor : joined.tensors) {
    reader.require(tensor->shape == joined.made, "its operands differ in shape");
  }
  joined.dim = reader.dim(1, joined.made.size() + 1);
  joined.made.insert(joined.made.begin() + joined.dim, static_cast<std::int64_t>(joined.tensors.size()));
  return joined;
}

Made join(const CallView& view, Joined joined) {
  std::vector<Operand> types;
  for (const Tensor* tensor : joined.tensors) types.push_back({tensor->dtype, tensor->shape, false});
  return with_copies(view, one(view, result_type(types), std::move(joined.made)));
}

std::optional<NodeSplit> split_cat(const NodeView& view, const Joined& joined, int output_dim) {
  if (view.output_shape() != joined.made) return std::nullopt;
  const bool along = joined.dim == output_dim;
  NodeSplit split = whole(view, along ? Locality::kBlock : Locality::kElement);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (is_skipped(view.operand(i)) && view.output_rank() != 1) continue;
    if (along) {
      follow(split, i, output_dim, maps::Part{offset});
      offset += view.rows(i, output_dim);
    } else if (!follow_same(split, view, i, output_dim, output_dim)) {
      return std::nullopt;
    }
  }
  return split;
}

std::optional<NodeSplit> split_stack(const NodeView& view, const Joined& joined, int output_dim) {
  if (view.output_shape() != joined.made || joined.dim == output_dim) return std::nullopt;
  NodeSplit split = whole(view, Locality::kElement);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    if (!follow_same(split, view, i, output_dim - (output_dim > joined.dim ? 1 : 0), output_dim)) return std::nullopt;
  }
  return split;
}

// The rows of operand 0 along one dimension that a call takes or replaces.
struct Sliced {
  int dim = 0;
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};

// The arguments from `place` on are dim, start, end and step. Ends are counted from the first row, or from the last
// where they are negative.
Sliced read_slice_from(const ArgumentReader& reader, std::size_t place) {
  reader.require_arguments(place + 4);
  const Shape& shape = reader.tensor(0).shape;
  Sliced sliced;
  sliced.dim = reader.dim(place, shape.size());
  const std::int64_t rows = at(shape, sliced.dim);
  const auto bound = [&](std::size_t argument, std::int64_t fallback) {
    const std::int64_t value = reader.try_integer(argument, -kIntegerBound, kIntegerBound).value_or(fallback);
    return std::clamp<std::int64_t>(value < 0 ? value + rows : value, 0, rows);
  };
  sliced.start = bound(place + 1, 0);
  const std::int64_t end = std::max(sliced.start, bound(place + 2, rows));
  sliced.step = reader.integer(place + 3, 1, kMaxAdmittedRows);
  sliced.count = ceil_div(end - sliced.start, sliced.step);
  return sliced;
}

// (self, dim, start, end, step)
Sliced read_slice(const ArgumentReader& reader) { return read_slice_from(reader, 1); }

// (self, dim, start, length)
Sliced read_narrow(const ArgumentReader& reader) {
  reader.require_arguments(4);
  const Shape& shape = reader.tensor(0).shape;
  Sliced sliced;
  sliced.dim = reader.dim(1, shape.size());
  const std::int64_t rows = at(shape, sliced.dim);
  sliced.start = reader.integer(2, -rows, rows);
  if (sliced.start < 0) sliced.start += rows;
  sliced.count = reader.integer(3, 0, rows - sliced.start);
  return sliced;
}

Made take_rows(const CallView& view, const Sliced& sliced) {
  return seen(view, view.tensor(0), with_rows(view.tensor(0).shape, sliced.dim, sliced.count));
}

std::optional<NodeSplit> split_sliced(const NodeView& view, const Sliced& sliced, int output_dim) {
  if (sliced.dim != output_dim) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (view.output_rows(output_dim) != sliced.count) return std::nullopt;
  return block_rows(view, output_dim, maps::Stride{sliced.start, sliced.step});
}

// Argument 3 is the number of rows, or their end, for which null means the last one.
template <typename Read>
Operator sliced_operator(Read read, bool has_count) {
  return {reading(read, take_rows),
          {reading(read, split_sliced),
           [has_count](const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
             SlicedCall call = call_by_rows(view, split, rows);
             if (!std::holds_alternative<maps::Stride>(split.operands[0].map)) return call;
             call.changes.push_back({2, std::int64_t{0}});
             call.changes.push_back({3, has_count ? Argument(rows.size()) : Argument()});
             return call;
           }},
          true};
}

Made scatter(const CallView& view, const Shape& part) {
  const Tensor& self = view.tensor(0);
  view.require(view.tensor(1) == Tensor{self.dtype, part}, "the rows to insert do not fit");
  return seen(view, self, self.shape);
}

// (self, src, dim, start, end, step)
Made slice_scatter(const CallView& view) {
  const Sliced sliced = read_slice_from(view, 2);
  return scatter(view, with_rows(view.tensor(0).shape, sliced.dim, sliced.count));
}

std::optional<NodeSplit> split_slice_scatter(const NodeView& view, int output_dim) {
  if (read_slice_from(view, 2).dim == output_dim) return std::nullopt;
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || !follow_same(*split, view, 1, output_dim, output_dim)) return std::nullopt;
  return split;
}

// Dimension and index are the arguments from `place` on; returns the dimension.
int read_select_from(const ArgumentReader& reader, std::size_t place) {
  reader.require_arguments(place + 2);
  const Shape& shape = reader.tensor(0).shape;
  const int dim = reader.dim(place, shape.size());
  static_cast<void>(reader.integer(place + 1, -at(shape, dim), at(shape, dim) - 1));
  return dim;
}

Shape without(Shape shape, int dim) {
  shape.erase(shape.begin() + dim);
  return shape;
}

// (self, src, dim, index)
Made select_scatter(const CallView& view) {
  return scatter(view, without(view.tensor(0).shape, read_select_from(view, 2)));
}

// (self, dim, index); returns the dimension.
int read_select(const ArgumentReader& reader) { return read_select_from(reader, 1); }

Made select(const CallView& view, int dim) { return seen(view, view.tensor(0), without(view.tensor(0).shape, dim)); }

std::optional<NodeSplit> split_dropped(const NodeView& view, int dropped, int output_dim) {
  return same_rows(view, Locality::kElement, output_dim + (output_dim >= dropped ? 1 : 0), output_dim);
}

void require_few(const ArgumentReader& reader, std::int64_t parts) {
  reader.require(parts <= static_cast<std::int64_t>(kMaxArguments), "it makes more parts than a node can have outputs");
}

// (self, dim); returns the dimension.
int read_unbind(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Shape& shape = reader.tensor(0).shape;
  const int dim = reader.dim(1, shape.size());
  require_few(reader, at(shape, dim));
  return dim;
}

Made unbind(const CallView& view, int dim) {
  const Tensor& self = view.tensor(0);
  Made made;
  made.is_list = true;
  made.outputs.assign(static_cast<std::size_t>(at(self.shape, dim)), {self.dtype, without(self.shape, dim)});
  made.operations = kMove * count_of(self.shape);
  return made;
}

// A list of parts with these numbers of rows.
struct Parted {
  int dim = 0;
  Ints rows;
};

Parted read_even_parts(const ArgumentReader& reader, int dim, std::int64_t size) {
  const std::int64_t rows = at(reader.tensor(0).shape, dim);
  require_few(reader, ceil_div(rows, size));
  Parted parted{dim, {}};
  for (std::int64_t begin = 0; begin < rows; begin += size) parted.rows.push_back(std::min(size, rows - begin));
  return parted;
}

// (self, split_size, dim)
Parted read_split(const ArgumentReader& reader) {
  const int dim = reader.dim(2, reader.tensor(0).shape.size());
  return read_even_parts(reader, dim, reader.integer(1, 1, kMaxAdmittedRows));
}

// (self, chunks, dim)
Parted read_chunk(const ArgumentReader& reader) {
  const Shape& shape = reader.tensor(0).shape;
  const int dim = reader.dim(2, shape.size());
  const std::int64_t rows = std::max<std::int64_t>(1, at(shape, dim));
  return read_even_parts(reader, dim, ceil_div(rows, reader.integer(1, 1, kMaxAdmittedRows)));
}

// (self, split_sizes, dim)
Parted read_parts(const ArgumentReader& reader) {
  const Shape& shape = reader.tensor(0).shape;
  const int dim = reader.dim(2, shape.size());
  Parted parted{dim, reader.integers(1, 0, kMaxAdmittedRows)};
  std::int64_t rows = 0;
  for (const std::int64_t size : parted.rows) rows += size;
  reader.require(!parted.rows.empty() && rows == at(shape, dim), "its parts must cover its input");
  return parted;
}

template <typename Read>
Operator parts_operator(Read read) {
  return {[read](const CallView& view) {
            view.require_arguments(3);
            const Tensor& self = view.tensor(0);
            const Parted parted = read(view);
            Made made;
            made.is_list = true;
            for (const std::int64_t rows : parted.rows) {
              made.outputs.push_back({self.dtype, with_rows(self.shape, parted.dim, rows)});
            }
            made.operations = kMove * count_of(self.shape);
            return made;
          },
          unless_along([read](const NodeView& view) { return read(view).dim; })};
}

}  // namespace

void add_parts(Table& table) {
  table["aten::cat"] = {reading(read_cat, join), {reading(read_cat, split_cat)}, true};
  table["aten::stack"] = {reading(read_stack, join), {reading(read_stack, split_stack)}, true};
  table["aten::slice.Tensor"] = sliced_operator(read_slice, false);
  table["aten::narrow"] = sliced_operator(read_narrow, true);
  table["aten::slice_scatter"] = {slice_scatter, {split_slice_scatter}};
  table["aten::select_scatter"] = {select_scatter};
  table["aten::select.int"] = {reading(read_select, select), {reading(read_select, split_dropped)}};
  table["aten::unbind.int"] = {reading(read_unbind, unbind), {reading(read_unbind, split_dropped)}};
  table["aten::split.Tensor"] = parts_operator(read_split);
  table["aten::split.sizes"] = parts_operator(read_parts);
  table["aten::split_with_sizes"] = parts_operator(read_parts);
  table["aten::chunk"] = parts_operator(read_chunk);
}

}  // namespace atl::infer::operators
