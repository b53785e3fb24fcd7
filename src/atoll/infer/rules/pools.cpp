// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "atoll/infer/rules/rules.h"
#include "atoll/infer/rules/states.h"

// Pooling. Maxima get a border of the lowest value, as convolutions get zeros. Means keep the operator's own padding,
// because their divisor depends on where the border is: their slices start on the grid of strides, and the rows whose
// window was cut are dropped.
namespace atl::infer {
namespace {

struct Pool {
  int spatial = 0;  // dimensions; they are the last ones
  int first = 0;
  Ints kernel;
  Ints stride;
  Ints padding;
  Ints dilation;
  bool ceil_mode = false;
};

// Counts as PyTorch does: in ceil_mode the last window may extend past the end, but must not begin there.
std::int64_t rows_made(const Pool& pool, int i, std::int64_t rows) {
  const std::int64_t stride = at(pool.stride, i);
  const std::int64_t span = at(pool.dilation, i) * (at(pool.kernel, i) - 1) + 1;
  const std::int64_t free = rows + 2 * at(pool.padding, i) - span;
  std::int64_t made = (pool.ceil_mode ? ceil_div(free, stride) : floor_div(free, stride)) + 1;
  if (pool.ceil_mode && (made - 1) * stride >= rows + at(pool.padding, i)) --made;
  return made;
}

// (self, kernel_size, stride, padding, ...); none for what does not fit together.
std::optional<Pool> read_pool(const NodeView& view, int spatial, bool has_dilation) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 36;
  Pool pool;
  pool.spatial = spatial;
  pool.first = view.rank(0) - spatial;
  if (pool.first < 1 || pool.first > 2 || view.output_rank() != view.rank(0)) return std::nullopt;
  const auto dims = static_cast<std::size_t>(spatial);
  pool.kernel = per_dim(view, 1, dims);
  pool.stride = view.integers(2).empty() ? pool.kernel : per_dim(view, 2, dims);
  pool.padding = per_dim(view, 3, dims);
  pool.dilation = has_dilation ? per_dim(view, 4, dims) : Ints(dims, 1);
  pool.ceil_mode = view.boolean(has_dilation ? 5 : 4);
  if (pool.kernel.empty() || pool.stride.empty() || pool.padding.empty() || pool.dilation.empty()) return std::nullopt;
  for (int i = 0; i < spatial; ++i) {
    if (at(pool.kernel, i) < 1 || at(pool.stride, i) < 1 || at(pool.dilation, i) < 1) return std::nullopt;
    const std::int64_t rows = view.rows(0, pool.first + i);
    if (rows < 1 || rows > kMaxRows || view.output_rows(pool.first + i) != rows_made(pool, i, rows)) {
      return std::nullopt;
    }
  }
  return pool;
}

double lowest(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8: return -128;
    case Dtype::kInt16: return -32768;
    case Dtype::kInt32: return std::numeric_limits<std::int32_t>::min();
    case Dtype::kInt64: return -9223372036854775808.0;
    case Dtype::kUint8:
    case Dtype::kBool: return 0;
    default: return -std::numeric_limits<double>::infinity();
  }
}

// The second output, if any, holds positions in the whole plane, which a slice cannot know.
std::optional<NodeSplit> split_max(const NodeView& view, int spatial, int output_dim) {
  const auto pool = read_pool(view, spatial, true);
  if (!pool) return std::nullopt;
  if (output_dim < pool->first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (view.uses_output(1)) return std::nullopt;
  const int i = output_dim - pool->first;
  return block_rows(
      view, output_dim,
      maps::Window{at(pool->kernel, i), at(pool->stride, i), at(pool->padding, i), at(pool->dilation, i)});
}

SlicedCall slice_max(const NodeView& view, int spatial, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto pool = read_pool(view, spatial, true);
  if (!pool || output_dim < pool->first) return call;
  const std::int64_t count = view.rows(0, output_dim);
  const Cut parts = cut(reached(split.operands[0].map, rows, count), count);
  if (parts.low + parts.high > 0) {
    call.pads.push_back({0, output_dim, parts.low, parts.high, lowest(view.operand(0).dtype)});
  }
  Ints padding = pool->padding;
  padding[static_cast<std::size_t>(output_dim - pool->first)] = 0;
  call.changes.push_back({3, padding});
  return call;
}

std::optional<NodeSplit> split_mean(const NodeView& view, int spatial, int output_dim) {
  const auto pool = read_pool(view, spatial, false);
  if (!pool) return std::nullopt;
  if (output_dim < pool->first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const int i = output_dim - pool->first;
  return block_rows(view, output_dim, maps::Grid{at(pool->kernel, i), at(pool->stride, i), at(pool->padding, i)});
}

SlicedCall slice_mean(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (const auto* grid = std::get_if<maps::Grid>(&split.operands[0].map)) {
    const std::int64_t first = call.operands[0].rows.begin / grid->stride;
    call.keep = {rows.begin - first, rows.end - first};
  }
  return call;
}

// (self, output_size): the windows repeat where both counts have a common factor.
std::optional<NodeSplit> split_adaptive(const NodeView& view, int spatial, int output_dim) {
  const int first = view.rank(0) - spatial;
  if (first < 1 || first > 2 || view.output_rank() != view.rank(0)) return std::nullopt;
  if (output_dim < first) return same_rows(view, Locality::kElement, output_dim, output_dim);
  const std::int64_t inputs = view.rows(0, output_dim);
  const std::int64_t outputs = view.output_rows(output_dim);
  const Ints sizes = per_dim(view, 1, static_cast<std::size_t>(spatial));
  if (sizes.empty() || at(sizes, output_dim - first) != outputs || inputs < 1) return std::nullopt;
  if (outputs < 1 || (outputs == 1 && inputs > 1) || view.uses_output(1)) return std::nullopt;
  const std::int64_t blocks = std::gcd(inputs, outputs);
  return block_rows(view, output_dim, maps::Blocks{inputs / blocks, outputs / blocks, 0, 0, 0});
}

SlicedCall slice_adaptive(const NodeView& view, int spatial, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  const auto* blocks = std::get_if<maps::Blocks>(&split.operands[0].map);
  if (blocks == nullptr) return call;
  const Region read = call.operands[0].rows;
  const std::int64_t begin = read.begin / blocks->inputs * blocks->outputs;
  Ints sizes = per_dim(view, 1, static_cast<std::size_t>(spatial));
  const auto entry = static_cast<std::size_t>(output_dim - (view.rank(0) - spatial));
  sizes[entry] = read.size() / blocks->inputs * blocks->outputs;
  call.changes.push_back({1, sizes});
  call.keep = {rows.begin - begin, rows.end - begin};
  return call;
}

// One sum, or one maximum, of all rows.
std::optional<std::int64_t> adaptive_bytes(const NodeView& view, int spatial, std::size_t operand, int dim) {
  if (operand != 0 || dim < view.rank(0) - spatial || dim >= view.output_rank() || view.output_rows(dim) != 1) {
    return std::nullopt;
  }
  return view.output().elements() * sum_bytes(view.output().dtype);
}

Rule max_rule(int spatial) {
  return {[=](const NodeView& view, int output_dim) { return split_max(view, spatial, output_dim); },
          [=](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
            return slice_max(view, spatial, split, output_dim, rows);
          },
          {}};
}

Rule mean_rule(int spatial) {
  return {[=](const NodeView& view, int output_dim) { return split_mean(view, spatial, output_dim); }, slice_mean, {}};
}

Rule adaptive_rule(int spatial, bool is_mean) {
  Rule rule;
  rule.split = [=](const NodeView& view, int output_dim) { return split_adaptive(view, spatial, output_dim); };
  rule.slice = [=](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
    return slice_adaptive(view, spatial, split, output_dim, rows);
  };
  rule.partial_bytes = [=](const NodeView& view, std::size_t operand, int dim) {
    return adaptive_bytes(view, spatial, operand, dim);
  };
  if (is_mean) {
    rule.partial = [=](const NodeView& view, std::size_t operand, int dim) {
      return adaptive_bytes(view, spatial, operand, dim) ? mean_pool_states(view, dim) : std::nullopt;
    };
  }
  return rule;
}

}  // namespace

void add_pool_rules(Rules& rules) {
  for (int spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    rules["aten::max_pool" + dims] = max_rule(spatial);
    rules["aten::max_pool" + dims + "_with_indices"] = max_rule(spatial);
    rules["aten::avg_pool" + dims] = mean_rule(spatial);
    rules["aten::adaptive_avg_pool" + dims] = adaptive_rule(spatial, true);
    rules["aten::_adaptive_avg_pool" + dims] = adaptive_rule(spatial, true);
    rules["aten::adaptive_max_pool" + dims] = adaptive_rule(spatial, false);
  }
}

}  // namespace atl::infer
