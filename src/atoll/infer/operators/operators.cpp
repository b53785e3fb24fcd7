// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/operators/operators.h"

#include <utility>

namespace atl::infer::operators {

const Table& table() {
  static const Table known = [] {
    Table added;
    for (const auto add : {add_attention, add_binary, add_borders, add_convolutions, add_creation, add_dimensions,
                           add_element, add_indexing, add_norms, add_orders, add_parts, add_pools, add_products,
                           add_recurrent, add_reductions, add_resize, add_softmax, add_views}) {
      add(added);
    }
    return added;
  }();
  return known;
}

double count_of(const Shape& shape) {
  double count = 1;
  for (const std::int64_t size : shape) count *= static_cast<double>(size);
  return count;
}

double bytes_in(const Tensor& tensor) { return count_of(tensor.shape) * static_cast<double>(bytes_of(tensor.dtype)); }

Made one(const CallView& view, Dtype dtype, Shape shape) {
  Made made;
  made.outputs.push_back({dtype, view.bounded(std::move(shape))});
  made.operations = kMove * count_of(made.outputs.front().shape);
  return made;
}

Made seen(const CallView& view, const Tensor& source, Shape shape) { return one(view, source.dtype, std::move(shape)); }

Made with_copies(const CallView& view, Made made) {
  for (const Tensor& operand : view.types()) made.workspace_bytes += bytes_in(operand);
  return made;
}

std::int64_t window_rows(const ArgumentReader& reader, std::int64_t rows, std::int64_t padding, std::int64_t kernel,
                         std::int64_t stride, std::int64_t dilation) {
  const std::int64_t free = rows + padding - dilation * (kernel - 1) - 1;
  if (free < 0) reader.refuse("its window is larger than its padded input");
  return free / stride + 1;
}

void require_weight(const ArgumentReader& reader, std::size_t argument, const Tensor& input, const Shape& shape) {
  const Tensor* weight = reader.try_tensor(argument);
  if (weight == nullptr) return;
  if (weight->dtype != input.dtype) {
    reader.refuse("argument " + std::to_string(argument) + " must have its input's type");
  }
  if (weight->shape != shape) {
    reader.refuse("argument " + std::to_string(argument) + " has the wrong shape for its input");
  }
}

}  // namespace atl::infer::operators
