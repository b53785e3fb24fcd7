// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/not_finite.h"

#include <algorithm>
#include <cstring>

namespace atl::collectives {
namespace {

constexpr std::size_t kBlock = 2048;  // elements scanned between two checks for a hit

// A value is not finite if all bits of `exponent` are set, and it is NaN if a bit of `fraction` is set too.
template <typename Bits>
std::optional<NotFinite> scan(std::span<const std::byte> data, Bits exponent, Bits fraction) {
  const std::size_t count = data.size() / sizeof(Bits);
  Bits block[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::memcpy(block, data.data() + begin * sizeof(Bits), size * sizeof(Bits));
    Bits bad = 0;
    for (std::size_t i = 0; i < size; ++i) bad |= static_cast<Bits>((block[i] & exponent) == exponent);
    if (!bad) continue;
    const auto* first = std::find_if(block, block + size, [&](Bits bits) { return (bits & exponent) == exponent; });
    return NotFinite{begin + static_cast<std::size_t>(first - block), (*first & fraction) != 0};
  }
  return std::nullopt;
}

std::optional<NotFinite> halved(std::optional<NotFinite> part) {
  if (part) part->index /= 2;
  return part;
}

std::optional<NotFinite> scan_float(std::span<const std::byte> data) {
  return scan<std::uint32_t>(data, 0x7f800000U, 0x007fffffU);
}

std::optional<NotFinite> scan_double(std::span<const std::byte> data) {
  return scan<std::uint64_t>(data, 0x7ff0000000000000ULL, 0x000fffffffffffffULL);
}

}  // namespace

std::optional<NotFinite> find_not_finite(DataType dtype, std::span<const std::byte> data) noexcept {
  switch (dtype) {
    case DataType::kFloat64: return scan_double(data);
    case DataType::kFloat32: return scan_float(data);
    case DataType::kFloat16: return scan<std::uint16_t>(data, 0x7c00, 0x03ff);
    case DataType::kBFloat16: return scan<std::uint16_t>(data, 0x7f80, 0x007f);
    case DataType::kFloat8E4M3: return scan<std::uint8_t>(data, 0x7f, 0x7f);  // this format has no infinities
    case DataType::kFloat8E5M2: return scan<std::uint8_t>(data, 0x7c, 0x03);
    case DataType::kComplex64: return halved(scan_float(data));
    case DataType::kComplex128: return halved(scan_double(data));
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
    case DataType::kBool: break;
  }
  return std::nullopt;
}

}  // namespace atl::collectives
