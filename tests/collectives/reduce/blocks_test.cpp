// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/core/error.h"
#include "tests/collectives/reduce/harsh_float_mode.h"
#include "tests/collectives/reduce/reduce_support.h"

namespace atl::collectives {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr BlockFormat kFormats[] = {BlockFormat::kInt8, BlockFormat::kFloat8E4M3, BlockFormat::kFloat8E5M2};
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr std::size_t kCounts[] = {0, 1, 2, 31, 32, 33, 63, 64, 100, 511, 512, 513, 1024, 1500, 4099};

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Packs values of any dtype; fails the test unless all instruction sets agree.
template <class T>
Bytes packed(BlockFormat format, DataType dtype, const std::vector<T>& values) {
  Bytes result(packed_bytes(values.size()), std::byte{0xEE});
  pack_blocks(format, dtype, bytes_of(values), values.size(), result.data());
  for (const Simd simd : simds()) {
    Bytes other(result.size(), std::byte{0xDD});
    pack_blocks(format, dtype, bytes_of(values), values.size(), other.data(), simd);
    EXPECT_TRUE(same_bits(result, other)) << to_string(format) << " " << to_string(simd);
  }
  return result;
}

Bytes packed(BlockFormat format, const Floats& values) { return packed(format, DataType::kFloat32, values); }

template <class T>
std::vector<T> unpacked(BlockFormat format, DataType dtype, const Bytes& bytes, std::size_t count) {
  std::vector<T> result(count);
  unpack_blocks(format, dtype, bytes.data(), count, reinterpret_cast<std::byte*>(result.data()));
  for (const Simd simd : simds()) {
    std::vector<T> other(count);
    unpack_blocks(format, dtype, bytes.data(), count, reinterpret_cast<std::byte*>(other.data()), simd);
    EXPECT_TRUE(same_bits(result, other)) << to_string(format) << " " << to_string(simd);
  }
  return result;
}

Floats unpacked(BlockFormat format, const Bytes& bytes, std::size_t count) {
  return unpacked<float>(format, DataType::kFloat32, bytes, count);
}

Floats round_trip(BlockFormat format, const Floats& values) {
  return unpacked(format, packed(format, values), values.size());
}

/// Magnitudes of all sizes, zeros and subnormals among them, from block to block and within.
Floats random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-126, 127);
  std::uniform_int_distribution<int> below(0, 20);
  std::uniform_real_distribution<float> mantissa(-2.0F, 2.0F);
  Floats values(count);
  int top = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kBlockElements == 0) top = exponent(random);
    const float value = std::ldexp(mantissa(random), top - below(random));
    values[i] = random() % 16 == 0 ? 0.0F : std::isfinite(value) ? value : kMaxFloat;
  }
  return values;
}

/// Returns the magnitude that a code stands for at scale 1, from the formats' definitions.
double magnitude_of(BlockFormat format, int code) {
  if (format == BlockFormat::kInt8) return code;
  const int mantissa_bits = format == BlockFormat::kFloat8E4M3 ? 3 : 2;
  const int bias = format == BlockFormat::kFloat8E4M3 ? 7 : 15;
  const int exponent = code >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

int largest_code(BlockFormat format) {
  return format == BlockFormat::kInt8 ? 127 : format == BlockFormat::kFloat8E4M3 ? 0x7E : 0x7B;
}

/// Packs by definition: the smallest scale that fits, then the nearest of all codes, the even one of two.
Floats expected(BlockFormat format, const Floats& values, std::vector<int>& exponents) {
  const double top = magnitude_of(format, largest_code(format));
  const int least = format == BlockFormat::kInt8 ? -125 : format == BlockFormat::kFloat8E4M3 ? -116 : -109;
  Floats results;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlockElements) {
    const std::size_t end = std::min(values.size(), begin + kBlockElements);
    double most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(static_cast<double>(values[i])));
    int exponent = least;
    while (most > std::ldexp(top, exponent)) ++exponent;
    exponents.push_back(exponent);
    for (std::size_t i = begin; i < end; ++i) {
      const double magnitude = std::ldexp(std::fabs(static_cast<double>(values[i])), -exponent);
      int best = 0;
      for (int code = 1; code <= largest_code(format); ++code) {
        const double is = std::fabs(magnitude_of(format, code) - magnitude);
        const double was = std::fabs(magnitude_of(format, best) - magnitude);
        if (is < was || (is == was && code % 2 == 0)) best = code;
      }
      const double value = std::min(std::ldexp(magnitude_of(format, best), exponent), static_cast<double>(kMaxFloat));
      results.push_back(static_cast<float>(std::copysign(value, static_cast<double>(values[i]))));
    }
  }
  return results;
}

TEST(Blocks, BytesAreCounted) {
  EXPECT_EQ(packed_bytes(0), 0U);
  EXPECT_EQ(packed_bytes(1), 2U);
  EXPECT_EQ(packed_bytes(32), 33U);
  EXPECT_EQ(packed_bytes(33), 35U);
  EXPECT_EQ(packed_bytes(1 << 20), (1U << 20) / 32 * 33);
  EXPECT_LE(static_cast<double>(packed_bytes(1 << 20)) / (2.0 * (1 << 20)), 0.52);  // of bfloat16's bytes
}

TEST(Blocks, EachIsTheNearestByDefinition) {
  for (const BlockFormat format : kFormats) {
    for (const std::size_t count : kCounts) {
      const Floats values = random_values(count, static_cast<std::uint32_t>(count));
      std::vector<int> exponents;
      const Floats reference = expected(format, values, exponents);
      const Bytes bytes = packed(format, values);
      const Floats found = unpacked(format, bytes, count);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(found[i], reference[i]) << to_string(format) << " of " << values[i];
      for (std::size_t i = 0; i < exponents.size(); ++i)
        ASSERT_EQ(static_cast<int>(bytes[count + i]), exponents[i] + 127) << to_string(format);
    }
  }
}

TEST(Blocks, ErrorsAreWithinTheBound) {
  for (const BlockFormat format : kFormats) {
    const Floats values = random_values(1 << 16, 5);
    const Bytes bytes = packed(format, values);
    const Floats found = unpacked(format, bytes, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double scale = std::ldexp(1.0, static_cast<int>(bytes[values.size() + i / kBlockElements]) - 127);
      const double x = std::fabs(static_cast<double>(values[i]));
      const double bound = format == BlockFormat::kInt8         ? scale / 2
                           : format == BlockFormat::kFloat8E4M3 ? std::max(x / 16, scale / 1024)
                                                                : std::max(x / 8, scale / 131072);
      ASSERT_LE(std::fabs(static_cast<double>(values[i]) - static_cast<double>(found[i])), bound) << to_string(format);
    }
  }
}

TEST(Blocks, ValuesAreWhatIsUnpackedAndWhatIsLost) {
  for (const BlockFormat format : kFormats) {
    for (const std::size_t count : kCounts) {
      const Floats values = random_values(count, static_cast<std::uint32_t>(7 * count));
      const Floats found = round_trip(format, values);
      for (const Simd simd : simds()) {
        Floats loss = values;
        Bytes bytes(packed_bytes(count));
        pack_blocks_keeping_loss(format, loss.data(), count, bytes.data(), simd);
        EXPECT_EQ(bytes, packed(format, values));
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(static_cast<double>(found[i]) + static_cast<double>(loss[i]), static_cast<double>(values[i]));
        }
      }
    }
  }
}

TEST(Blocks, PackingAgainChangesNothing) {
  for (const BlockFormat format : kFormats) {
    const Floats once = round_trip(format, random_values(4099, 11));
    EXPECT_TRUE(same_bits(once, round_trip(format, once))) << to_string(format);
  }
}

TEST(Blocks, WhatIsNotFiniteSpoilsItsBlockAndNoOther) {
  for (const BlockFormat format : kFormats) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (const std::size_t place : {std::size_t{0}, std::size_t{31}, std::size_t{40}, std::size_t{69}}) {
        Floats values = random_values(70, 3);
        const Floats clean = round_trip(format, values);
        values[place] = bad;
        const Floats found = round_trip(format, values);
        Floats loss = values;
        Bytes bytes(packed_bytes(values.size()));
        pack_blocks_keeping_loss(format, loss.data(), loss.size(), bytes.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i / kBlockElements == place / kBlockElements) {
            EXPECT_TRUE(std::isnan(found[i]));
            EXPECT_EQ(loss[i], 0.0F);
          } else {
            EXPECT_EQ(found[i], clean[i]);
          }
        }
      }
    }
  }
}

TEST(Blocks, TheLargestStayFiniteAndTheSmallestBecomeZero) {
  for (const BlockFormat format : kFormats) {
    const Floats extremes{kMaxFloat, -kMaxFloat, 0.0F, 1.0F};
    for (const float value : round_trip(format, extremes)) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(round_trip(format, extremes)[0], kMaxFloat);
    const float subnormal = std::ldexp(1.0F, -126) - std::ldexp(1.0F, -149);
    for (const float value : round_trip(format, {subnormal, -subnormal, std::ldexp(1.0F, -149), 0.0F, -0.0F}))
      EXPECT_EQ(value, 0.0F);
    const float least = std::ldexp(1.0F, -125);
    EXPECT_EQ(round_trip(format, {least})[0], least);
  }
}

TEST(Blocks, TheCallersFloatingPointModeDoesNotMatter) {
  for (const BlockFormat format : kFormats) {
    const Floats values = random_values(4099, 13);
    const Bytes before = packed(format, values);
    const Floats found = unpacked(format, before, values.size());
    const HarshFloatMode mode;
    const Bytes bytes = packed(format, values);
    const Floats flushed = unpacked(format, bytes, values.size());
    EXPECT_TRUE(mode.is_kept());
    EXPECT_EQ(before, bytes);
    EXPECT_TRUE(same_bits(found, flushed));
  }
}

double float16_value(std::uint16_t code) {
  const int exponent = (code >> 10) & 31;
  const int mantissa = code & 1023;
  const double magnitude = exponent == 31  ? (mantissa == 0 ? HUGE_VAL : std::nan(""))
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Blocks, SixteenBitValuesAreReadAndWritten) {
  for (const BlockFormat format : kFormats) {
    for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
      const auto value_of = [&](std::uint16_t code) {
        return dtype == DataType::kFloat16 ? static_cast<float>(float16_value(code))
                                           : std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
      };
      // A code's neighbours in its block are like it, so that all magnitudes are told apart.
      std::vector<std::uint16_t> codes(1 << 16);
      Floats values(codes.size());
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
      std::transform(codes.begin(), codes.end(), values.begin(), value_of);
      const Bytes bytes = packed(format, dtype, codes);
      EXPECT_EQ(bytes, packed(format, values)) << to_string(format) << " " << to_string(dtype);
      const Floats wide = unpacked(format, bytes, codes.size());
      const auto narrow = unpacked<std::uint16_t>(format, dtype, bytes, codes.size());
      const float largest = value_of(dtype == DataType::kFloat16 ? 0x7BFF : 0x7F7F);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        if (std::isnan(wide[i])) {
          ASSERT_TRUE(std::isnan(value_of(narrow[i])));
        } else {
          const float nearest = std::clamp(wide[i], -largest, largest);
          ASSERT_EQ(value_of(narrow[i]), nearest) << to_string(dtype) << " " << values[i];
        }
      }
    }
  }
}

TEST(Blocks, Float16OfOtherValuesIsTheNearest) {
  const Floats values = random_values(4099, 23);
  for (const BlockFormat format : kFormats) {
    const Bytes bytes = packed(format, values);
    const Floats wide = unpacked(format, bytes, values.size());
    const auto narrow = unpacked<std::uint16_t>(format, DataType::kFloat16, bytes, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double target = std::clamp(static_cast<double>(wide[i]), -65504.0, 65504.0);
      const double error = std::fabs(float16_value(narrow[i]) - target);
      const auto magnitude = static_cast<std::uint16_t>(narrow[i] & 0x7FFF);
      const auto up = static_cast<std::uint16_t>(magnitude < 0x7BFF ? narrow[i] + 1 : narrow[i]);
      const auto down = static_cast<std::uint16_t>(magnitude > 0 ? narrow[i] - 1 : narrow[i]);
      ASSERT_LE(error, std::fabs(float16_value(up) - target));
      ASSERT_LE(error, std::fabs(float16_value(down) - target));
    }
  }
}

TEST(Blocks, DoublesAreRoundedToFloatsFirst) {
  const Floats values = random_values(100, 17);
  const std::vector<double> wide(values.begin(), values.end());
  for (const BlockFormat format : kFormats) {
    const Bytes bytes = packed(format, DataType::kFloat64, wide);
    EXPECT_EQ(bytes, packed(format, values));
    const auto found = unpacked<double>(format, DataType::kFloat64, bytes, wide.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), unpacked(format, bytes, wide.size()).begin()));
    EXPECT_TRUE(std::isnan(unpacked<double>(format, DataType::kFloat64,
                                            packed(format, DataType::kFloat64, std::vector<double>{1e300}), 1)[0]));
  }
}

TEST(Blocks, AddingIsUnpackingAndAdding) {
  for (const BlockFormat format : kFormats) {
    for (const std::size_t count : kCounts) {
      const Bytes bytes = packed(format, random_values(count, 19));
      const Floats found = unpacked(format, bytes, count);
      const Floats start = random_values(count, 21);
      for (const Simd simd : simds()) {
        Floats sums = start;
        add_blocks(format, bytes.data(), count, sums.data(), simd);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sums[i], start[i] + found[i]);
      }
    }
  }
}

TEST(Blocks, AnyBytesMayBeUnpacked) {
  std::mt19937 random(29);
  Bytes bytes(packed_bytes(1 << 14));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const BlockFormat format : kFormats) {
    const Floats found = unpacked(format, bytes, 1 << 14);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const int code = static_cast<int>(bytes[i]) & 0x7F;
      const int scale = static_cast<int>(bytes[found.size() + i / kBlockElements]);
      const bool has_code = format == BlockFormat::kInt8 || code <= largest_code(format);
      EXPECT_EQ(std::isnan(found[i]), scale == 255 || !has_code);
      EXPECT_FALSE(std::isinf(found[i]));
    }
  }
}

TEST(Blocks, OtherTypesAreRefused) {
  std::byte memory[64] = {};
  for (const DataType dtype : {DataType::kInt32, DataType::kFloat8E4M3, DataType::kComplex64, DataType::kBool}) {
    EXPECT_FALSE(can_pack(dtype));
    try {
      pack_blocks(BlockFormat::kInt8, dtype, memory, 1, memory + 32);
      ADD_FAILURE() << to_string(dtype);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(to_string(dtype)), std::string::npos);
    }
    EXPECT_THROW(unpack_blocks(BlockFormat::kInt8, dtype, memory, 1, memory + 32), Error);
  }
}

}  // namespace
}  // namespace atl::collectives
