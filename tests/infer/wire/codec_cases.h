// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/wire/codecs.h"
#include "tests/infer/wire/cases.h"

namespace atl::infer::test {

inline constexpr std::array kEveryDtype{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64,
                                        Dtype::kInt8,    Dtype::kInt16,    Dtype::kInt32,   Dtype::kInt64,
                                        Dtype::kUint8,   Dtype::kBool};

inline Tensor row(Dtype dtype, std::size_t elements) { return {dtype, {static_cast<std::int64_t>(elements)}}; }

template <class T>
ByteVector bytes_of_values(const std::vector<T>& values) {
  ByteVector bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Elements drawn from `distinct` different ones of random bits, each of which occurs if there is room.
inline ByteVector few_valued(Dice& dice, std::size_t element_bytes, std::size_t elements, std::size_t distinct) {
  std::vector<ByteVector> table;
  while (table.size() < distinct) {
    ByteVector value = random_bytes(dice, element_bytes);
    if (std::find(table.begin(), table.end(), value) == table.end()) table.push_back(value);
  }
  ByteVector bytes;
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t any = static_cast<std::size_t>(dice.integer(0, static_cast<std::int64_t>(distinct) - 1));
    const ByteVector& value = table[i < distinct ? i : any];
    bytes.insert(bytes.end(), value.begin(), value.end());
  }
  return bytes;
}

/// Unpacks `packed` into memory of exactly the size.
inline ByteVector unpacked(wire::Codec codec, const Tensor& type, std::span<const std::byte> packed) {
  const ByteVector exact(packed.begin(), packed.end());
  ByteVector out(static_cast<std::size_t>(type.bytes()), std::byte{0xcd});
  wire::unpack(codec, type, exact, out);
  return out;
}
inline ByteVector there_and_back(wire::Codec codec, const Tensor& type, std::span<const std::byte> bytes) {
  const wire::Packed packed = wire::pack(codec, type, bytes);
  return unpacked(packed.codec, type, packed.codec == wire::Codec::kRaw ? bytes : packed.bytes);
}

inline wire::Loss measure_loss(wire::Codec codec, const Tensor& type, std::span<const std::byte> bytes) {
  const wire::Packed packed = wire::pack(codec, type, bytes);
  return wire::loss_of(packed.codec, type, bytes, packed.bytes);
}

/// The error of unpack for a malformed message; empty if it is valid.
inline std::string refused(wire::Codec codec, const Tensor& type, std::span<const std::byte> packed) {
  return failure(ErrorKind::kProtocol, [&] { unpacked(codec, type, packed); });
}

}  // namespace atl::infer::test
