// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/collectives/reduce/reduce_kernels.h"

// Plain loops without branches on elements, which compilers vectorize. Everything is in an unnamed namespace and uses
// types of the standard library but no functions: each including source is compiled for another instruction set, and a
// shared inline function could be linked from the wrong one. No step depends on float32 subnormals, except for reading
// float16.
namespace atl::collectives::blocks {
namespace {

constexpr std::size_t kElements = 32;
constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
constexpr std::uint32_t kNanScale = 255;
constexpr std::uint32_t kNanBits = 0x7FC00000U;

[[gnu::always_inline]] constexpr std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
[[gnu::always_inline]] constexpr float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
constexpr float power_of_two(int exponent) { return float_of(static_cast<std::uint32_t>(127 + exponent) << 23); }

/// Compares values below 2^31; signed comparisons vectorize better.
[[gnu::always_inline]] constexpr bool is_less(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b);
}

/// Limits a value's magnitude to `largest`; NaN stays NaN.
[[gnu::always_inline]] inline float limited(float value, float largest) {
  const float below = value > largest ? largest : value;
  return below < -largest ? -largest : below;
}

/// Returns a code's value times its block's scale; every NaN becomes the positive quiet one.
[[gnu::always_inline]] inline float scaled(float decoded, float step) {
  const float value = decoded * step;
  return value != value ? float_of(kNanBits) : limited(value, float_of(0x7F7FFFFFU));
}

/// Floating-point formats narrower than float32 with the same layout. Not for NaN, nor for values beyond the format's
/// largest.
template <int kExponentBits, int kMantissaBits>
struct Small {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;  ///< between the mantissas of the format and of float32
  static constexpr std::uint32_t kSign = 1U << (kBits - 1);
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;

  [[gnu::always_inline]] static std::uint32_t encoded(float value) {
    const std::uint32_t magnitude = bits_of(value) & kMagnitude;
    const std::uint32_t sign = (bits_of(value) >> (32 - kBits)) & kSign;
    const std::uint32_t normal =
        (magnitude - kRebias + ((1U << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1U)) >> kShift;
    // One unit in the last place of this is the format's smallest subnormal: the addition rounds.
    constexpr float kMagic = power_of_two(24 - kBias - kMantissaBits);
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + kMagic) - bits_of(kMagic);
    return (is_less(magnitude, kRebias + (1U << 23)) ? subnormal : normal) | sign;
  }
};

struct Int8Element {
  static constexpr int kTopExponent = 6;  ///< of the largest, 127
  static constexpr std::uint32_t kTopMantissa = 0x7E0000U;
  static constexpr int kMinScale = 2;  ///< with which the smallest element is 2^-125

  [[gnu::always_inline]] static std::uint8_t encoded(float value) {
    constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: its last place is 1, so the addition rounds
    return static_cast<std::uint8_t>(bits_of(value + kMagic));
  }
  [[gnu::always_inline]] static float decoded(std::uint8_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
};

template <int kExponentBits, int kMantissaBits, std::uint32_t kMaxCode, int kMin>
struct Float8Element {
  using Format = Small<kExponentBits, kMantissaBits>;
  static constexpr int kTopExponent = static_cast<int>(kMaxCode >> kMantissaBits) - Format::kBias;
  static constexpr std::uint32_t kTopMantissa = (kMaxCode << Format::kShift) & 0x7FFFFFU;
  static constexpr int kMinScale = kMin;

  [[gnu::always_inline]] static std::uint8_t encoded(float value) {
    return static_cast<std::uint8_t>(Format::encoded(value));
  }
  [[gnu::always_inline]] static float decoded(std::uint8_t code) {
    const std::uint32_t magnitude = code & 0x7FU;
    const std::uint32_t sign = (code & 0x80U) << 24;
    constexpr float kUnit = power_of_two(1 - Format::kBias - kMantissaBits);
    const std::uint32_t subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * kUnit);
    const std::uint32_t normal = (magnitude << Format::kShift) + Format::kRebias;
    const std::uint32_t finite = is_less(magnitude, 1U << kMantissaBits) ? subnormal : normal;
    return float_of((is_less(kMaxCode, magnitude) ? kNanBits : finite) | sign);
  }
};
using E4M3Element = Float8Element<4, 3, 0x7E, 11>;
using E5M2Element = Float8Element<5, 2, 0x7B, 18>;
static_assert(E4M3Element::kTopExponent == 8 && E5M2Element::kTopExponent == 15);
static_assert(E4M3Element::kTopMantissa == 0x600000U && E5M2Element::kTopMantissa == 0x600000U);

/// Returns the biased exponent of the scale of a block whose largest magnitude has the bits `most`.
template <class Element>
[[gnu::always_inline]] inline std::uint32_t scale_of(std::uint32_t most) {
  const std::uint32_t exponent = most >> 23;
  if (exponent == 255) return kNanScale;
  const int scale =
      static_cast<int>(exponent) - Element::kTopExponent + ((most & 0x7FFFFFU) > Element::kTopMantissa ? 1 : 0);
  return static_cast<std::uint32_t>(scale < Element::kMinScale ? Element::kMinScale : scale);
}

template <class Element>
void pack(const float* values, std::size_t elements, std::byte* codes, std::byte* scales, float* loss) {
  for (std::size_t begin = 0; begin < elements; begin += kElements) {
    const float* const block = values + begin;
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::uint32_t magnitude = bits_of(block[i]) & kMagnitude;
      most = is_less(most, magnitude) ? magnitude : most;
    }
    const std::uint32_t scale = scale_of<Element>(most);
    scales[begin / kElements] = static_cast<std::byte>(scale);
    std::uint8_t found[kElements] = {};
    float lost[kElements] = {};
    if (scale != kNanScale) {
      const float inverse = float_of((254 - scale) << 23);
      const float step = float_of(scale << 23);
      for (std::size_t i = 0; i < kElements; ++i) found[i] = Element::encoded(block[i] * inverse);
      for (std::size_t i = 0; i < kElements; ++i) lost[i] = block[i] - scaled(Element::decoded(found[i]), step);
    }
    __builtin_memcpy(codes + begin, found, sizeof(found));
    if (loss != nullptr) __builtin_memcpy(loss + begin, lost, sizeof(lost));
  }
}

[[gnu::always_inline]] inline float step_of(std::byte scale) {
  const auto exponent = static_cast<std::uint32_t>(scale);
  return float_of(exponent == kNanScale ? kNanBits : exponent << 23);
}

template <class Element>
void unpack(const std::byte* codes, const std::byte* scales, std::size_t elements, float* values) {
  for (std::size_t begin = 0; begin < elements; begin += kElements) {
    const float step = step_of(scales[begin / kElements]);
    std::uint8_t found[kElements];
    __builtin_memcpy(found, codes + begin, sizeof(found));
    for (std::size_t i = 0; i < kElements; ++i) values[begin + i] = scaled(Element::decoded(found[i]), step);
  }
}

template <class Element>
void add(const std::byte* codes, const std::byte* scales, std::size_t elements, float* values) {
  float found[kElements];
  for (std::size_t begin = 0; begin < elements; begin += kElements) {
    unpack<Element>(codes + begin, scales + begin / kElements, kElements, found);
    for (std::size_t i = 0; i < kElements; ++i) values[begin + i] += found[i];
  }
}

struct Float64 {
  using Memory = double;
  [[gnu::always_inline]] static float widened(double value) { return static_cast<float>(value); }
  [[gnu::always_inline]] static double narrowed(float value) { return static_cast<double>(value); }
};

struct Float32 {
  using Memory = float;
  [[gnu::always_inline]] static float widened(float value) { return value; }
  [[gnu::always_inline]] static float narrowed(float value) { return value; }
};

struct BFloat16 {
  using Memory = std::uint16_t;
  [[gnu::always_inline]] static float widened(std::uint16_t code) {
    return float_of(static_cast<std::uint32_t>(code) << 16);
  }
  [[gnu::always_inline]] static std::uint16_t narrowed(float value) {
    const std::uint32_t bits = bits_of(limited(value, float_of(0x7F7F0000U)));
    const std::uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    return static_cast<std::uint16_t>(value != value ? 0x7FC0U : nearest);
  }
};

struct Float16 {
  using Memory = std::uint16_t;
  [[gnu::always_inline]] static float widened(std::uint16_t code) {
    const std::uint32_t magnitude = (code & 0x7FFFU) << 13;
    const std::uint32_t sign = (code & 0x8000U) << 16;
    const std::uint32_t finite = bits_of(float_of(magnitude) * power_of_two(112));
    return float_of((magnitude >= 0x0F800000U ? magnitude | 0x7F800000U : finite) | sign);
  }
  [[gnu::always_inline]] static std::uint16_t narrowed(float value) {
    const std::uint32_t code = Small<5, 10>::encoded(limited(value, 65504.0F));
    return static_cast<std::uint16_t>(value != value ? 0x7E00U : code);
  }
};

template <class Type>
void widen(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    typename Type::Memory value;
    __builtin_memcpy(&value, from + i * sizeof(value), sizeof(value));
    to[i] = Type::widened(value);
  }
}

template <class Type>
void narrow(const float* from, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const typename Type::Memory value = Type::narrowed(from[i]);
    __builtin_memcpy(to + i * sizeof(value), &value, sizeof(value));
  }
}

constexpr detail::BlockKernels make_block_kernels() {
  return {.pack = {pack<Int8Element>, pack<E4M3Element>, pack<E5M2Element>},
          .unpack = {unpack<Int8Element>, unpack<E4M3Element>, unpack<E5M2Element>},
          .add = {add<Int8Element>, add<E4M3Element>, add<E5M2Element>},
          .widen = {widen<Float64>, widen<Float32>, widen<Float16>, widen<BFloat16>},
          .narrow = {narrow<Float64>, narrow<Float32>, narrow<Float16>, narrow<BFloat16>}};
}

}  // namespace
}  // namespace atl::collectives::blocks
