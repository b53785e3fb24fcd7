// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/operands.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace atl::pytorch {
namespace {

collectives::Segment memory_of(const at::Tensor& tensor) {
  // The caller asked to write through the pointer; c10d updates version counters.
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::uint64_t>(tensor.nbytes())};
}

}  // namespace

collectives::Segment Operands::keep(const at::Tensor& memory) {
  memories_.push_back(memory);
  return memory_of(memory);
}

collectives::Segment Operands::read(const at::Tensor& tensor) { return keep(plain_.read(tensor)); }

collectives::Segment Operands::write(const at::Tensor& tensor, bool load) { return keep(plain_.write(tensor, load)); }

at::Tensor Operands::bytes_of(const collectives::Segment& segment) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const at::Tensor& memory : memories_) {
    const collectives::Segment all = memory_of(memory);
    if (segment.data < all.data || segment.data + segment.bytes > all.data + all.bytes) continue;
    // A tensor of one element may have any stride, but a view as bytes needs stride 1.
    const at::Tensor bytes = memory.as_strided({memory.numel()}, {1}).view(at::kByte);
    return bytes.narrow(0, segment.data - all.data, static_cast<std::int64_t>(segment.bytes));
  }
  TORCH_INTERNAL_ASSERT(segment.bytes == 0, "the segment does not belong to an operand");
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device()));
}

std::vector<collectives::Segment> cut(collectives::Segment whole, const std::vector<std::int64_t>& numels,
                                      std::size_t element_bytes) {
  std::vector<collectives::Segment> parts;
  parts.reserve(numels.size());
  std::byte* next = whole.data;
  for (const std::int64_t numel : numels) {
    const auto bytes = static_cast<std::uint64_t>(numel) * element_bytes;
    parts.push_back({next, bytes});
    next += bytes;
  }
  return parts;
}

std::vector<collectives::Segment> cut_equally(collectives::Segment whole, int parts) {
  const std::uint64_t bytes = whole.bytes / static_cast<std::uint64_t>(parts);
  std::vector<collectives::Segment> segments;
  segments.reserve(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) segments.push_back({whole.data + static_cast<std::uint64_t>(i) * bytes, bytes});
  return segments;
}

}  // namespace atl::pytorch
