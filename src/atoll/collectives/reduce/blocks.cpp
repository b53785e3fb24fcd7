// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "atoll/collectives/reduce/float_mode.h"
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

using detail::BlockKernels;

static_assert(static_cast<int>(DataType::kFloat64) == 0 && static_cast<int>(DataType::kFloat32) == 1 &&
              static_cast<int>(DataType::kFloat16) == 2 && static_cast<int>(DataType::kBFloat16) == 3);

/// Elements per pass, so that the intermediate memory stays in cache.
constexpr std::size_t kPart = 16 * kBlockElements;
using Part = std::array<float, kPart>;

const BlockKernels& kernels_of(Simd simd) {
  if (simd > detail::machine_simd())
    throw Error(ErrorKind::kUnavailable, std::string("pack: this machine does not support ") + to_string(simd));
  return detail::kernels_of(simd).blocks;
}

std::size_t index_of(BlockFormat format) {
  const auto index = static_cast<std::size_t>(format);
  if (index >= kBlockFormatCount)
    throw Error(ErrorKind::kInvalidArgument, "pack: invalid block format " + std::to_string(index));
  return index;
}

std::size_t index_of(DataType dtype) {
  if (!can_pack(dtype)) {
    throw Error(ErrorKind::kInvalidArgument, std::string("pack: ") + to_string(dtype) +
                                                 " is not supported: give float64, float32, float16 or bfloat16");
  }
  return static_cast<std::size_t>(dtype);
}

std::size_t whole_blocks(std::size_t count) { return (count + kBlockElements - 1) / kBlockElements * kBlockElements; }

/// Calls `visit(begin, elements, codes, scales)` for consecutive parts of `count` elements. `visit` handles codes that
/// do not fill their last block.
template <class Byte, class Visit>
void for_each_part(std::size_t count, Byte* packed, Visit visit) {
  for (std::size_t begin = 0; begin < count; begin += kPart) {
    visit(begin, std::min(kPart, count - begin), packed + begin, packed + count + begin / kBlockElements);
  }
}

/// Packs up to kPart elements, padded with zeros to whole blocks. `loss` may be `values`, or nullptr.
void pack_part(BlockKernels::Pack pack, const float* values, std::size_t elements, std::byte* codes, std::byte* scales,
               float* loss) {
  const std::size_t padded = whole_blocks(elements);
  if (padded == elements) return pack(values, elements, codes, scales, loss);
  std::array<std::byte, kPart> all_codes;
  pack(values, padded, all_codes.data(), scales, loss);
  std::memcpy(codes, all_codes.data(), elements);
}

/// Unpacks up to kPart elements into whole blocks.
void unpack_part(BlockKernels::Unpack unpack, const std::byte* codes, const std::byte* scales, std::size_t elements,
                 Part& values) {
  const std::size_t padded = whole_blocks(elements);
  if (padded == elements) return unpack(codes, scales, elements, values.data());
  std::array<std::byte, kPart> all_codes{};
  std::memcpy(all_codes.data(), codes, elements);
  unpack(all_codes.data(), scales, padded, values.data());
}

}  // namespace

const char* to_string(BlockFormat format) noexcept {
  static constexpr std::array kNames{"int8", "fp8_e4m3", "fp8_e5m2"};
  return entry_of(kNames, format, "unknown");
}

bool can_pack(DataType dtype) noexcept { return dtype <= DataType::kBFloat16; }

void pack_blocks(BlockFormat format, DataType dtype, const std::byte* values, std::size_t count, std::byte* packed,
                 Simd simd) {
  const BlockKernels& kernels = kernels_of(simd);
  const auto kernel = kernels.pack[index_of(format)];
  const auto widened = kernels.widen[index_of(dtype)];
  const std::size_t size = size_of(dtype);
  const detail::DefaultFloatMode mode;
  for_each_part(count, packed, [&](std::size_t begin, std::size_t elements, std::byte* codes, std::byte* scales) {
    Part part;
    widened(values + begin * size, elements, part.data());
    std::fill(part.data() + elements, part.data() + whole_blocks(elements), 0.0F);
    pack_part(kernel, part.data(), elements, codes, scales, nullptr);
  });
}

void pack_blocks_keeping_loss(BlockFormat format, float* values, std::size_t count, std::byte* packed, Simd simd) {
  const auto kernel = kernels_of(simd).pack[index_of(format)];
  const detail::DefaultFloatMode mode;
  for_each_part(count, packed, [&](std::size_t begin, std::size_t elements, std::byte* codes, std::byte* scales) {
    if (elements % kBlockElements == 0)
      return pack_part(kernel, values + begin, elements, codes, scales, values + begin);
    Part part{};
    std::copy_n(values + begin, elements, part.data());
    pack_part(kernel, part.data(), elements, codes, scales, part.data());
    std::copy_n(part.data(), elements, values + begin);
  });
}

void unpack_blocks(BlockFormat format, DataType dtype, const std::byte* packed, std::size_t count, std::byte* values,
                   Simd simd) {
  const BlockKernels& kernels = kernels_of(simd);
  const auto kernel = kernels.unpack[index_of(format)];
  const auto narrowed = kernels.narrow[index_of(dtype)];
  const std::size_t size = size_of(dtype);
  const detail::DefaultFloatMode mode;
  for_each_part(count, packed,
                [&](std::size_t begin, std::size_t elements, const std::byte* codes, const std::byte* scales) {
                  Part part;
                  unpack_part(kernel, codes, scales, elements, part);
                  narrowed(part.data(), elements, values + begin * size);
                });
}

void add_blocks(BlockFormat format, const std::byte* packed, std::size_t count, float* sums, Simd simd) {
  const BlockKernels& kernels = kernels_of(simd);
  const auto whole = kernels.add[index_of(format)];
  const auto kernel = kernels.unpack[index_of(format)];
  const detail::DefaultFloatMode mode;
  for_each_part(count, packed,
                [&](std::size_t begin, std::size_t elements, const std::byte* codes, const std::byte* scales) {
                  if (elements % kBlockElements == 0) return whole(codes, scales, elements, sums + begin);
                  Part part;
                  unpack_part(kernel, codes, scales, elements, part);
                  for (std::size_t i = 0; i < elements; ++i) sums[begin + i] += part[i];
                });
}

}  // namespace atl::collectives
