// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/collectives/reduce/reduce_vector.h"

#if defined(__F16C__) && ATOLL_SIMD_BYTES >= 32
#include <immintrin.h>
#define ATOLL_HARDWARE_FLOAT16 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define ATOLL_HARDWARE_FLOAT16 1
#else
#define ATOLL_HARDWARE_FLOAT16 0
#endif

// Conversions between elements in memory and lanes that a fold can work on. Each format reads and writes kVectorBytes
// bytes of memory as kVectors vectors; which element is in which lane is the format's own choice, since a fold never
// mixes lanes.
namespace atl::collectives {
namespace {

template <class V, int kCount>
struct Pack {
  V vectors[kCount];
};

/// Types folded as they are.
template <class T>
struct Native {
  using Lane = T;
  using Lanes = Vector<T>;
  static constexpr int kVectors = 1;

  [[gnu::always_inline]] static Pack<Lanes, 1> load(const std::byte* from) { return {{load_vector<Lanes>(from)}}; }
  [[gnu::always_inline]] static void store(std::byte* to, const Pack<Lanes, 1>& pack) {
    store_vector(to, canonical(pack.vectors[0]));
  }
};

/// All bits set for true, in memory 0 or 1 (anything but 0 reads as true).
struct Boolean {
  using Lane = std::uint8_t;
  using Lanes = Vector<std::uint8_t>;
  static constexpr int kVectors = 1;

  [[gnu::always_inline]] static Pack<Lanes, 1> load(const std::byte* from) {
    return {{reinterpret_cast<Lanes>(load_vector<Lanes>(from) != 0)}};
  }
  [[gnu::always_inline]] static void store(std::byte* to, const Pack<Lanes, 1>& pack) {
    store_vector<Lanes>(to, pack.vectors[0] & 1);
  }
};

/// The upper half of a float32. Vector 0 holds the even elements, vector 1 the odd ones.
struct BFloat16 {
  using Lane = float;
  using Lanes = F32;
  static constexpr int kVectors = 2;

  [[gnu::always_inline]] static Pack<F32, 2> load(const std::byte* from) {
    const U32 both = load_vector<U32>(from);
    return {{float_of(both << 16), float_of(both & 0xFFFF0000U)}};
  }
  [[gnu::always_inline]] static void store(std::byte* to, const Pack<F32, 2>& pack) {
    store_vector<U32>(to, (rounded(pack.vectors[0]) >> 16) | (rounded(pack.vectors[1]) & 0xFFFF0000U));
  }

 private:
  /// Returns the nearest bfloat16 in the upper half of each lane; the lower half is undefined.
  [[gnu::always_inline]] static U32 rounded(F32 x) {
    const U32 bits = bits_of(x);
    const U32 nearest = bits + 0x7FFFU + ((bits >> 16) & 1U);
    return x != x ? U32{} + 0x7FC00000U : nearest;
  }
};

/// float16 and fp8 in integer arithmetic. `kSaturates`: the format has no infinity, its largest code is NaN, and larger
/// values become the largest finite one, as in PyTorch. `kNan`: the code of every NaN result. Vector k holds the
/// elements k, k + kVectors, ... No step depends on float32 subnormals, so it does not matter whether they are flushed.
template <int kExponentBits, int kMantissaBits, bool kSaturates, std::uint32_t kNan>
struct Narrow {
  using Lane = float;
  using Lanes = F32;
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kVectors = 32 / kBits;

  [[gnu::always_inline]] static Pack<F32, kVectors> load(const std::byte* from) {
    const U32 codes = load_vector<U32>(from);
    Pack<F32, kVectors> pack;
    for (int k = 0; k < kVectors; ++k) pack.vectors[k] = decoded(codes >> (k * kBits));
    return pack;
  }
  [[gnu::always_inline]] static void store(std::byte* to, const Pack<F32, kVectors>& pack) {
    U32 codes = encoded(pack.vectors[0]);
    for (int k = 1; k < kVectors; ++k) codes |= encoded(pack.vectors[k]) << (k * kBits);
    store_vector(to, codes);
  }

 private:
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;  ///< between the mantissas of the format and of float32
  static constexpr std::uint32_t kSign = 1U << (kBits - 1);
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kInfinity = ((1U << kExponentBits) - 1) << kMantissaBits;
  static constexpr std::uint32_t kMax = kSaturates ? kNan - 1 : kInfinity;  ///< where overflow ends

  static constexpr float power_of_two(int exponent) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);
  }

  [[gnu::always_inline]] static F32 decoded(U32 code) {
    const U32 magnitude = code & (kSign - 1);
    const U32 sign = (code & kSign) << (32 - kBits);
    const U32 normal = (magnitude << kShift) + kRebias;
    constexpr float kUnit = power_of_two(1 - kBias - kMantissaBits);
    const U32 subnormal = bits_of(__builtin_convertvector(reinterpret_cast<I32>(magnitude), F32) * kUnit);
    U32 value = is_less(magnitude, 1U << kMantissaBits) ? subnormal : normal;
    if constexpr (kSaturates) {
      value = is_less(magnitude, kNan) ? value : U32{} + 0x7FC00000U;
    } else {
      value = is_less(magnitude, kInfinity) ? value : ((magnitude << kShift) | 0x7F800000U);
    }
    return float_of(value | sign);
  }

  [[gnu::always_inline]] static U32 encoded(F32 x) {
    const U32 magnitude = bits_of(x) & 0x7FFFFFFFU;
    const U32 sign = (bits_of(x) >> (32 - kBits)) & kSign;
    const U32 normal = (magnitude - kRebias + ((1U << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1U)) >> kShift;
    // One unit in the last place of this is the format's smallest subnormal: the addition rounds.
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(127 + 24 - kBias - kMantissaBits) << 23;
    const U32 subnormal = bits_of(float_of(magnitude) + __builtin_bit_cast(float, kMagic)) - kMagic;
    U32 code = is_less(magnitude, kRebias + (1U << 23)) ? subnormal : normal;
    code = is_less(code, kMax) ? code : U32{} + kMax;
    return x != x ? U32{} + kNan : (code | sign);
  }
};

using Float8E4M3 = Narrow<4, 3, true, 0x7F>;
using Float8E5M2 = Narrow<5, 2, false, 0x7F>;

#if ATOLL_HARDWARE_FLOAT16
/// float16 through the processor's conversions, which ignore the flush-to-zero modes. Vector 0 holds the first half of
/// the elements.
struct Float16 {
  using Lane = float;
  using Lanes = F32;
  static constexpr int kVectors = 2;

  [[gnu::always_inline]] static Pack<F32, 2> load(const std::byte* from) {
    return {{widened(from), widened(from + sizeof(Codes))}};
  }
  [[gnu::always_inline]] static void store(std::byte* to, const Pack<F32, 2>& pack) {
    const Codes first = narrowed(canonical(pack.vectors[0]));
    const Codes second = narrowed(canonical(pack.vectors[1]));
    __builtin_memcpy(to, &first, sizeof(Codes));
    __builtin_memcpy(to + sizeof(Codes), &second, sizeof(Codes));
  }

 private:
#if defined(__aarch64__)
  using Codes = float16x4_t;
  [[gnu::always_inline]] static F32 to_float(Codes codes) { return reinterpret_cast<F32>(vcvt_f32_f16(codes)); }
  [[gnu::always_inline]] static Codes narrowed(F32 x) { return vcvt_f16_f32(reinterpret_cast<float32x4_t>(x)); }
#elif ATOLL_SIMD_BYTES == 64
  using Codes = __m256i;
  // The forms without a mask read an undefined register, which compilers warn about.
  static constexpr __mmask16 kAllLanes = 0xFFFF;
  [[gnu::always_inline]] static F32 to_float(Codes codes) { return _mm512_maskz_cvtph_ps(kAllLanes, codes); }
  [[gnu::always_inline]] static Codes narrowed(F32 x) {
    return _mm512_maskz_cvtps_ph(kAllLanes, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#else
  using Codes = __m128i;
  [[gnu::always_inline]] static F32 to_float(Codes codes) { return _mm256_cvtph_ps(codes); }
  [[gnu::always_inline]] static Codes narrowed(F32 x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#endif
  [[gnu::always_inline]] static F32 widened(const std::byte* from) {
    Codes codes;
    __builtin_memcpy(&codes, from, sizeof(Codes));
    return to_float(codes);
  }
};
#else
using Float16 = Narrow<5, 10, false, 0x7E00>;
#endif

}  // namespace
}  // namespace atl::collectives
