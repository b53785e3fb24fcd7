// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Bytes of a vector register; a source sets it before its first include.
#ifndef ATOLL_SIMD_BYTES
#define ATOLL_SIMD_BYTES 16
#endif

// Everything here is in an unnamed namespace and uses types of the standard library but no function: each including
// source is compiled for another instruction set, and a shared inline function could be linked from the wrong one.
namespace atl::collectives {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

inline constexpr std::size_t kVectorBytes = ATOLL_SIMD_BYTES;

template <class Lane>
struct VectorOf {
  typedef Lane type __attribute__((vector_size(kVectorBytes)));
};
template <class Lane>
using Vector = typename VectorOf<Lane>::type;

using F32 = Vector<float>;
using I32 = Vector<std::int32_t>;
using U32 = Vector<std::uint32_t>;

template <class V>
[[gnu::always_inline]] inline V load_vector(const std::byte* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <class V>
[[gnu::always_inline]] inline void store_vector(std::byte* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

[[gnu::always_inline]] inline U32 bits_of(F32 value) { return reinterpret_cast<U32>(value); }
[[gnu::always_inline]] inline F32 float_of(U32 bits) { return reinterpret_cast<F32>(bits); }

/// Comparison of values below 2^31, which the oldest x86 has for signed lanes only.
[[gnu::always_inline]] inline I32 is_less(U32 a, std::uint32_t b) {
  return reinterpret_cast<I32>(a) < static_cast<std::int32_t>(b);
}

/// Any NaN becomes the positive quiet one without payload: which operand's payload survives an addition is up to the
/// compiler.
[[gnu::always_inline]] inline F32 canonical(F32 x) { return x != x ? F32{} + __builtin_nanf("") : x; }
[[gnu::always_inline]] inline Vector<double> canonical(Vector<double> x) {
  return x != x ? Vector<double>{} + __builtin_nan("") : x;
}
template <class V>
[[gnu::always_inline]] inline V canonical(V x) {
  return x;
}

/// Copies `bytes` in [kSize, 2 kSize] as two pieces that may overlap.
template <std::size_t kSize>
[[gnu::always_inline]] inline void copy_ends(std::byte* to, const std::byte* from, std::size_t bytes) {
  struct Piece {
    std::byte bytes[kSize];
  };
  Piece first;
  Piece last;
  __builtin_memcpy(&first, from, kSize);
  __builtin_memcpy(&last, from + bytes - kSize, kSize);
  __builtin_memcpy(to, &first, kSize);
  __builtin_memcpy(to + bytes - kSize, &last, kSize);
}

/// Copies fewer than kVectorBytes bytes without a call.
[[gnu::always_inline]] inline void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  if constexpr (kVectorBytes > 32) {
    if (bytes >= 32) return copy_ends<32>(to, from, bytes);
  }
  if constexpr (kVectorBytes > 16) {
    if (bytes >= 16) return copy_ends<16>(to, from, bytes);
  }
  if (bytes >= 8) return copy_ends<8>(to, from, bytes);
  if (bytes >= 4) return copy_ends<4>(to, from, bytes);
  if (bytes >= 2) return copy_ends<2>(to, from, bytes);
  if (bytes != 0) *to = *from;
}

}  // namespace
}  // namespace atl::collectives
