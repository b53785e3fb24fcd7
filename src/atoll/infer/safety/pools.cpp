// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "atoll/infer/row_map.h"
#include "atoll/infer/safety/validators.h"

namespace atl::infer::safety {
namespace {

// Counts as PyTorch does: in ceil_mode the last window may extend past the end, but must not begin there.
std::int64_t rows_made(const CallView& view, std::int64_t rows, std::int64_t padding, std::int64_t kernel,
                       std::int64_t stride, std::int64_t dilation, bool ceil_mode) {
  if (!ceil_mode) return window_rows(view, rows, 2 * padding, kernel, stride, dilation);
  std::int64_t made = ceil_div(rows + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1;
  if ((made - 1) * stride >= rows + padding) --made;
  view.require(made >= 1, "its window is larger than its padded input");
  return made;
}

// The input's dimensions before the spatial ones: channels, and possibly a batch.
Shape before(const CallView& view, const Tensor& input, std::size_t spatial) {
  const std::size_t rank = input.shape.size();
  view.require(rank == spatial + 1 || rank == spatial + 2, "its input has the wrong number of dimensions");
  return {input.shape.begin(), input.shape.end() - static_cast<std::ptrdiff_t>(spatial)};
}

// (self, kernel_size, stride, padding, [dilation,] ceil_mode, ...)
Made pool(const CallView& view, std::size_t spatial, bool has_dilation) {
  const Tensor& input = view.tensor(0, kFloats);
  Shape shape = before(view, input, spatial);
  const std::size_t first = shape.size();
  const Ints kernel = view.per_dim(1, spatial, 1, kMaxStep);
  const bool has_stride = !view.integers(2, 1, kMaxStep).empty();
  const Ints stride = has_stride ? view.per_dim(2, spatial, 1, kMaxStep) : kernel;
  const Ints padding = view.per_dim(3, spatial, 0, kMaxStep);
  const Ints dilation = has_dilation ? view.per_dim(4, spatial, 1, kMaxStep) : Ints(spatial, 1);
  const bool ceil_mode = view.boolean(has_dilation ? 5 : 4);
  double window = 1;
  for (std::size_t i = 0; i < spatial; ++i) {
    view.require(padding[i] <= kernel[i] / 2, "its padding is more than half of its window");
    shape.push_back(rows_made(view, input.shape[first + i], padding[i], kernel[i], stride[i], dilation[i], ceil_mode));
    window *= static_cast<double>(kernel[i]);
  }
  Made made = with_copies(view, one(view, input.dtype, std::move(shape)));
  made.operations *= window;
  return made;
}

Made max_pool(const CallView& view, std::size_t spatial, bool with_indices) {
  view.require_arguments(6);
  Made made = pool(view, spatial, true);
  const Tensor indices{Dtype::kInt64, made.outputs.front().shape};  // some kernels make them and discard them
  if (with_indices) {
    made.outputs.push_back(indices);
  } else {
    made.workspace_bytes += bytes_in(indices);
  }
  return made;
}

// (..., ceil_mode, count_include_pad[, divisor_override])
Made avg_pool(const CallView& view, std::size_t spatial) {
  view.require_arguments(spatial == 1 ? 6 : 7);
  static_cast<void>(view.boolean(5));
  if (spatial > 1) static_cast<void>(view.try_integer(6, 1, kMaxAdmittedRows));
  Made made = pool(view, spatial, false);
  const Ints kernel = view.per_dim(1, spatial, 1, kMaxStep);
  const Shape& sizes = view.tensor(0).shape;
  for (std::size_t i = 0; spatial == 3 && i < 3; ++i) {  // here padding does not count
    view.require(sizes[sizes.size() - 3 + i] >= kernel[i], "its window is larger than its input");
  }
  return made;
}

// (self, output_size)
Made adaptive(const CallView& view, std::size_t spatial, bool with_indices) {
  view.require_arguments(2);
  const Tensor& input = view.tensor(0, kFloats);
  Shape shape = before(view, input, spatial);
  const Ints rows = view.per_dim(1, spatial, 1, kMaxAdmittedRows);
  double windows = 1;
  for (std::size_t i = 0; i < spatial; ++i) {
    windows *= static_cast<double>(input.shape[shape.size()]) / static_cast<double>(rows[i]) + 2;
    shape.push_back(rows[i]);
  }
  Made made = with_copies(view, one(view, input.dtype, std::move(shape)));
  made.operations *= windows;
  const Tensor indices{Dtype::kInt64, made.outputs.front().shape};
  if (with_indices) made.outputs.push_back(indices);
  return made;
}

}  // namespace

void add_pool_validators(Operators& operators) {
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    const auto add = [&](const std::string& name, auto validate) { operators["aten::" + name] = {validate}; };
    add("max_pool" + dims, [=](const CallView& view) { return max_pool(view, spatial, false); });
    add("max_pool" + dims + "_with_indices", [=](const CallView& view) { return max_pool(view, spatial, true); });
    add("avg_pool" + dims, [=](const CallView& view) { return avg_pool(view, spatial); });
    add("adaptive_avg_pool" + dims, [=](const CallView& view) { return adaptive(view, spatial, false); });
    add("adaptive_max_pool" + dims, [=](const CallView& view) { return adaptive(view, spatial, true); });
    if (spatial > 1) {
      add("_adaptive_avg_pool" + dims, [=](const CallView& view) { return adaptive(view, spatial, false); });
    }
  }
}

}  // namespace atl::infer::safety
