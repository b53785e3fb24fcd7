// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <numeric>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/infer/operators/states.h"

// Pooling. In parts, maxima get a border of the lowest value, as convolutions get zeros. Means keep the operator's own
// padding, because their divisor depends on where the border is: their slices start on the grid of strides, and the
// rows whose window was cut are dropped.
namespace atl::infer::operators {
namespace {

struct Pool {
  int first = 0;  // spatial dimension; all of them are the last ones
  Ints kernel;
  Ints stride;
  Ints padding;
  Ints dilation;
  Shape made;  // the shape of the output
};

// The input's dimensions before the spatial ones: channels, and possibly a batch.
Shape before(const ArgumentReader& reader, const Tensor& input, std::size_t spatial) {
  const std::size_t rank = input.shape.size();
  reader.require(rank == spatial + 1 || rank == spatial + 2, "its input has the wrong number of dimensions");
  return {input.shape.begin(), input.shape.end() - static_cast<std::ptrdiff_t>(spatial)};
}

// Counts as PyTorch does: in ceil_mode the last window may extend past the end, but must not begin there.
std::int64_t pooled_rows(const ArgumentReader& reader, const Pool& pool, std::size_t i, std::int64_t rows,
                         bool ceil_mode) {
  const std::int64_t padding = pool.padding[i];
  const std::int64_t stride = pool.stride[i];
  if (!ceil_mode) return window_rows(reader, rows, 2 * padding, pool.kernel[i], stride, pool.dilation[i]);
  std::int64_t made = ceil_div(rows + 2 * padding - pool.dilation[i] * (pool.kernel[i] - 1) - 1, stride) + 1;
  if ((made - 1) * stride >= rows + padding) --made;
  reader.require(made >= 1, "its window is larger than its padded input");
  return made;
}

// (self, kernel_size, stride, padding, [dilation,] ceil_mode, ...)
Pool read_pool(const ArgumentReader& reader, std::size_t spatial, bool has_dilation) {
  reader.require_arguments(has_dilation || spatial == 1 ? 6 : 7);
  const Tensor& input = reader.tensor(0, kFloats);
  Pool pool;
  pool.made = before(reader, input, spatial);
  const std::size_t first = pool.made.size();
  pool.first = static_cast<int>(first);
  pool.kernel = reader.per_dim(1, spatial, 1, kMaxStep);
  const bool has_stride = !reader.integers(2, 1, kMaxStep).empty();
  pool.stride = has_stride ? reader.per_dim(2, spatial, 1, kMaxStep) : pool.kernel;
  pool.padding = reader.per_dim(3, spatial, 0, kMaxStep);
  pool.dilation = has_dilation ? reader.per_dim(4, spatial, 1, kMaxStep) : Ints(spatial, 1);
  const bool ceil_mode = reader.boolean(has_dilation ? 5 : 4);
  for (std::size_t i = 0; i < spatial; ++i) {
    reader.require(pool.padding[i] <= pool.kernel[i] / 2, "its padding is more than half of its window");
    pool.made.push_back(pooled_rows(reader, pool, i, input.shape[first + i], ceil_mode));
  }
  return pool;
}

Made pooled(const CallView& view, const Pool& pool) {
  Made made = with_copies(view, one(view, view.tensor(0).dtype, pool.made));
  made.operations *= count_of(pool.kernel);
  return made;
}

Made max_pool(const CallView& view, const Pool& pool, bool with_indices) {
  Made made = pooled(view, pool);
  const Tensor indices{Dtype::kInt64, made.outputs.front().shape};  // some kernels make them and discard them
  if (with_indices) {
    made.outputs.push_back(indices);
  } else {
    made.workspace_bytes += bytes_in(indices);
  }
  return made;
}

// (..., ceil_mode, count_include_pad[, divisor_override])
Made avg_pool(const CallView& view, const Pool& pool) {
  const std::size_t spatial = pool.kernel.size();
  static_cast<void>(view.boolean(5));
  if (spatial > 1) static_cast<void>(view.try_integer(6, 1, kMaxAdmittedRows));
  const Shape& sizes = view.tensor(0).shape;
  for (std::size_t i = 0; spatial == 3 && i < 3; ++i) {  // here padding does not count
    view.require(sizes[sizes.size() - 3 + i] >= pool.kernel[i], "its window is larger than its input");
  }
  return pooled(view, pool);
}

bool is_declared(const NodeView& view, const Pool& pool) {
  if (view.output_rank() != view.rank(0)) return false;
  for (int i = pool.first; i < view.output_rank(); ++i) {
    if (view.rows(0, i) < 1 || view.output_rows(i) != at(pool.made, i)) return false;
  }
  return true;
}

// The second output, if any, holds positions in the whole plane, which a slice cannot know.
std::optional<NodeSplit> split_max(const NodeView& view, const Pool& pool, int output_dim) {
  if (!is_declared(view, pool)) return std::nullopt;
  if (output_dim < pool.first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (view.uses_output(1)) return std::nullopt;
  const int i = output_dim - pool.first;
  return block_rows(view, output_dim,
                    maps::Window{at(pool.kernel, i), at(pool.stride, i), at(pool.padding, i), at(pool.dilation, i)});
}

SlicedCall slice_max(const NodeView& view, const Pool& pool, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (output_dim < pool.first) return call;
  const std::int64_t count = view.rows(0, output_dim);
  const Cut parts = cut(reached(split.operands[0].map, rows, count), count);
  if (parts.low + parts.high > 0) {
    call.pads.push_back({0, output_dim, parts.low, parts.high, -std::numeric_limits<double>::infinity()});
  }
  Ints padding = pool.padding;
  padding[static_cast<std::size_t>(output_dim - pool.first)] = 0;
  call.changes.push_back({3, padding});
  return call;
}

std::optional<NodeSplit> split_mean(const NodeView& view, const Pool& pool, int output_dim) {
  if (!is_declared(view, pool)) return std::nullopt;
  if (output_dim < pool.first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const int i = output_dim - pool.first;
  return block_rows(view, output_dim, maps::Grid{at(pool.kernel, i), at(pool.stride, i), at(pool.padding, i)});
}

SlicedCall slice_mean(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (const auto* grid = std::get_if<maps::Grid>(&split.operands[0].map)) {
    const std::int64_t first = call.operands[0].rows.begin / grid->stride;
    call.keep = {rows.begin - first, rows.end - first};
  }
  return call;
}

// (self, output_size)
struct AdaptivePool {
  int first = 0;
  Ints sizes;
  Shape made;
};

AdaptivePool read_adaptive(const ArgumentReader& reader, std::size_t spatial) {
  reader.require_arguments(2);
  AdaptivePool pool;
  pool.made = before(reader, reader.tensor(0, kFloats), spatial);
  pool.first = static_cast<int>(pool.made.size());
  pool.sizes = reader.per_dim(1, spatial, 1, kMaxAdmittedRows);
  pool.made.insert(pool.made.end(), pool.sizes.begin(), pool.sizes.end());
  return pool;
}

Made adaptive_pool(const CallView& view, const AdaptivePool& pool, bool with_indices) {
  const Tensor& input = view.tensor(0);
  Made made = with_copies(view, one(view, input.dtype, pool.made));
  double windows = 1;
  for (int i = pool.first; i < static_cast<int>(pool.made.size()); ++i) {
    windows *= static_cast<double>(at(input.shape, i)) / static_cast<double>(at(pool.made, i)) + 2;
  }
  made.operations *= windows;
  const Tensor indices{Dtype::kInt64, made.outputs.front().shape};
  if (with_indices) made.outputs.push_back(indices);
  return made;
}

// The windows repeat where both counts have a common factor.
std::optional<NodeSplit> split_adaptive(const NodeView& view, const AdaptivePool& pool, int output_dim) {
  if (view.output_rank() != view.rank(0)) return std::nullopt;
  if (output_dim < pool.first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const std::int64_t inputs = view.rows(0, output_dim);
  const std::int64_t outputs = at(pool.made, output_dim);
  if (view.output_rows(output_dim) != outputs || inputs < 1) return std::nullopt;
  if ((outputs == 1 && inputs > 1) || view.uses_output(1)) return std::nullopt;
  const std::int64_t blocks = std::gcd(inputs, outputs);
  return block_rows(view, output_dim, maps::Blocks{inputs / blocks, outputs / blocks, 0, 0, 0});
}

SlicedCall slice_adaptive(const NodeView& view, AdaptivePool pool, const NodeSplit& split, int output_dim,
                          Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto* blocks = std::get_if<maps::Blocks>(&split.operands[0].map);
  if (blocks == nullptr) return call;
  const Region read = call.operands[0].rows;
  const std::int64_t begin = read.begin / blocks->inputs * blocks->outputs;
  pool.sizes[static_cast<std::size_t>(output_dim - pool.first)] = read.size() / blocks->inputs * blocks->outputs;
  call.changes.push_back({1, pool.sizes});
  call.keep = {rows.begin - begin, rows.end - begin};
  return call;
}

// One sum, or one maximum, of all rows.
std::optional<std::int64_t> adaptive_bytes(const NodeView& view, const AdaptivePool& pool, std::size_t operand,
                                           int dim) {
  if (operand != 0 || dim < pool.first || dim >= view.output_rank() || view.output_rows(dim) != 1) return std::nullopt;
  return view.output().elements() * sum_bytes(view.output().dtype);
}

std::optional<Partial> adaptive_states(const NodeView& view, const AdaptivePool& pool, std::size_t operand, int dim) {
  return adaptive_bytes(view, pool, operand, dim) ? mean_pool_states(view, dim) : std::nullopt;
}

Operator max_operator(std::size_t spatial, bool with_indices) {
  const auto read = [=](const ArgumentReader& reader) { return read_pool(reader, spatial, true); };
  return {[=](const CallView& view) { return max_pool(view, read(view), with_indices); },
          {reading(read, split_max), reading(read, slice_max)}};
}

Operator mean_operator(std::size_t spatial) {
  const auto read = [=](const ArgumentReader& reader) { return read_pool(reader, spatial, false); };
  return {reading(read, avg_pool), {reading(read, split_mean), slice_mean}};
}

Operator adaptive_operator(std::size_t spatial, bool is_mean) {
  const auto read = [=](const ArgumentReader& reader) { return read_adaptive(reader, spatial); };
  Rule rule{reading(read, split_adaptive), reading(read, slice_adaptive), reading(read, adaptive_bytes)};
  if (is_mean) rule.partial = reading(read, adaptive_states);
  return {[=](const CallView& view) { return adaptive_pool(view, read(view), !is_mean); }, std::move(rule)};
}

}  // namespace

void add_pools(Table& table) {
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    table["aten::max_pool" + dims] = max_operator(spatial, false);
    table["aten::max_pool" + dims + "_with_indices"] = max_operator(spatial, true);
    table["aten::avg_pool" + dims] = mean_operator(spatial);
    table["aten::adaptive_avg_pool" + dims] = adaptive_operator(spatial, true);
    table["aten::adaptive_max_pool" + dims] = adaptive_operator(spatial, false);
    if (spatial > 1) table["aten::_adaptive_avg_pool" + dims] = adaptive_operator(spatial, true);
  }
}

}  // namespace atl::infer::operators
