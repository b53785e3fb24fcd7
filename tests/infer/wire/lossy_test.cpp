// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/lossy.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "codec_cases.h"

namespace atl::infer::wire {
namespace {

using test::bytes_of_values;
using test::ByteVector;
using test::Dice;
using test::measure_loss;
using test::refused;
using test::row;
using test::there_and_back;
using test::values_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Value of a finite float16, from its definition.
double value_of_half(int half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest of all finite float16 that are not negative, ties to even.
int nearest_half(double magnitude) {
  int low = 0;
  int high = 0x7bff;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of_half(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of_half(low);
  const double above = value_of_half(high) - magnitude;
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

TEST(Half, EveryOneIsExact) {
  for (int half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const float value = float_of_half(bits);
    if ((half >> 10 & 31) == 31) {
      EXPECT_EQ(std::isnan(value), (half & 0x3ff) != 0) << half;
      EXPECT_EQ(std::isinf(value), (half & 0x3ff) == 0) << half;
      EXPECT_EQ(std::signbit(value), (half & 0x8000) != 0) << half;
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(float_of_half(half_of(value)))) << half;
        EXPECT_TRUE(std::isnan(float_of_half(half_of(static_cast<double>(value))))) << half;
        continue;
      }
    } else {
      ASSERT_EQ(static_cast<double>(value), value_of_half(half)) << half;
    }
    ASSERT_EQ(half_of(value), bits);
    ASSERT_EQ(half_of(static_cast<double>(value)), bits);
  }
}

TEST(Half, OthersBecomeTheNearest) {
  Dice dice(1);
  for (int i = 0; i < 200'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(dice.integer(0, 0x7f7fffff));
    // Half of them near the range of float16.
    const float value =
        i % 2 == 0 ? std::bit_cast<float>(bits)
                   : std::ldexp(static_cast<float>(dice.real(0.5, 1)), static_cast<int>(dice.integer(-27, 17)));
    ASSERT_EQ(half_of(value), nearest_half(value)) << value;
    ASSERT_EQ(half_of(-value), nearest_half(value) | 0x8000) << value;
  }
}

// A float64 can differ from a tie by less than float32 can represent.
TEST(Half, TiesAndTheirNeighbours) {
  for (int half = 0; half < 0x7bff; ++half) {
    const double tie = (value_of_half(half) + value_of_half(half + 1)) / 2;
    for (const double value : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, 1e9)}) {
      ASSERT_EQ(half_of(value), nearest_half(value)) << value;
      ASSERT_EQ(half_of(-value), nearest_half(value) | 0x8000) << value;
    }
    const auto single = static_cast<float>(tie);
    for (const float value : {single, std::nextafter(single, 0.0F), std::nextafter(single, 1e9F)}) {
      ASSERT_EQ(half_of(value), nearest_half(value)) << value;
    }
  }
}

TEST(Half, WhatIsFiniteStaysFinite) {
  for (const double value : {65504.0, 65519.0, 65520.0, 1e6, 3.4e38, 1e300, std::numeric_limits<double>::max()}) {
    EXPECT_EQ(float_of_half(half_of(value)), 65504.0F) << value;
    EXPECT_EQ(float_of_half(half_of(-value)), -65504.0F) << value;
  }
  EXPECT_EQ(float_of_half(half_of(std::numeric_limits<float>::max())), 65504.0F);
  EXPECT_EQ(float_of_half(half_of(kInfinity)), kInfinity);
  EXPECT_EQ(float_of_half(half_of(-static_cast<double>(kInfinity))), -kInfinity);
  EXPECT_EQ(half_of(-0.0), 0x8000);
  EXPECT_EQ(half_of(5e-324), 0);
  EXPECT_EQ(half_of(-5e-324), 0x8000);
}

TEST(Half, PacksFloatsOnly) {
  const std::vector<double> values{1.0, -2.5, 1e-9, 70000, 0.1};
  const ByteVector back = there_and_back(Codec::kHalf, row(Dtype::kFloat64, 5), bytes_of_values(values));
  EXPECT_EQ(values_of<double>(back), (std::vector<double>{1.0, -2.5, 0, 65504, 0.0999755859375}));
  const std::vector<float> floats{1.0F, -2.5F, 1e-9F, 70000, 0.1F, kNan};
  const Packed packed = pack(Codec::kHalf, row(Dtype::kFloat32, 6), bytes_of_values(floats));
  EXPECT_EQ(packed.codec, Codec::kHalf);
  EXPECT_EQ(packed.bytes.size(), 12U);
  for (const Dtype dtype : test::kEveryDtype) {
    if (dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64) continue;
    const Tensor type = row(dtype, 20);
    const ByteVector bytes(static_cast<std::size_t>(type.bytes()));
    for (const Codec codec : {Codec::kHalf, Codec::kInt8}) {
      EXPECT_EQ(pack(codec, type, bytes), Packed{});
      EXPECT_NE(refused(codec, type, ByteVector(40)), "");
      EXPECT_NE(refused(codec, type, ByteVector(24)), "");
    }
  }
  for (const std::size_t size : {0U, 1U, 9U, 11U, 20U}) {
    EXPECT_NE(refused(Codec::kHalf, row(Dtype::kFloat32, 5), ByteVector(size)), "");
  }
}

// Largest magnitude of each channel along dimension 1, or of all.
template <class F>
std::vector<double> largest(const Tensor& type, const std::vector<F>& values) {
  const bool has_channels = type.shape.size() >= 3;
  const std::size_t channels = has_channels ? static_cast<std::size_t>(type.shape[1]) : 1;
  const std::size_t inner = values.size() / channels / (has_channels ? static_cast<std::size_t>(type.shape[0]) : 1);
  std::vector<double> most(channels);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double& of_channel = most[i / inner % channels];
    of_channel = std::max(of_channel, std::fabs(static_cast<double>(values[i])));
  }
  std::vector<double> by_element(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) by_element[i] = most[i / inner % channels];
  return by_element;
}

template <class F>
void expect_within_half_a_step(const Tensor& type, const std::vector<F>& values) {
  const ByteVector bytes = bytes_of_values(values);
  const Packed packed = pack(Codec::kInt8, type, bytes);
  ASSERT_EQ(packed.codec, Codec::kInt8);
  const std::vector<F> back = values_of<F>(test::unpacked(packed.codec, type, packed.bytes));
  const std::vector<double> most = largest(type, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::fabs(static_cast<double>(back[i]) - static_cast<double>(values[i]));
    ASSERT_LE(error, most[i] / 254 * (1 + 1e-4)) << i;
  }
}

TEST(Int8, EveryElementIsWithinHalfAStep) {
  Dice dice(2);
  const std::vector<Tensor> types{
      {Dtype::kFloat32, {50}},         {Dtype::kFloat32, {7, 9}},          {Dtype::kFloat32, {2, 3, 41}},
      {Dtype::kFloat32, {1, 5, 3, 7}}, {Dtype::kFloat32, {3, 1, 2, 3, 4}}, {Dtype::kFloat64, {2, 4, 5, 3}},
      {Dtype::kFloat64, {33}}};
  for (const Tensor& type : types) {
    for (const double scale : {1.0, 1e-20, 1e30}) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < type.elements(); ++i)
        values.push_back(dice.real(-scale, scale) * (i % 3 == 0 ? 0.01 : 1));
      if (type.dtype == Dtype::kFloat64) {
        expect_within_half_a_step(type, values);
      } else {
        expect_within_half_a_step(type, std::vector<float>(values.begin(), values.end()));
      }
    }
  }
  const float most = std::numeric_limits<float>::max();
  expect_within_half_a_step(row(Dtype::kFloat32, 20), std::vector<float>(20, most));
  expect_within_half_a_step(row(Dtype::kFloat64, 20), std::vector<double>(20, -static_cast<double>(most)));
  expect_within_half_a_step(row(Dtype::kFloat32, 20), std::vector<float>(20, 0.0F));
}

TEST(Int8, WhatHasNoStepIsSentAsItIs) {
  std::vector<float> values(60, 1.0F);
  const Tensor type{Dtype::kFloat32, {1, 3, 20}};
  EXPECT_EQ(pack(Codec::kInt8, type, bytes_of_values(values)).codec, Codec::kInt8);
  for (const float odd : {kNan, kInfinity, -kInfinity}) {
    values[31] = odd;
    EXPECT_EQ(pack(Codec::kInt8, type, bytes_of_values(values)), Packed{});
  }
  EXPECT_EQ(pack(Codec::kInt8, row(Dtype::kFloat32, 60), bytes_of_values(std::vector<float>(60, 1e-40F))), Packed{});
  EXPECT_EQ(pack(Codec::kInt8, row(Dtype::kFloat64, 60), bytes_of_values(std::vector<double>(60, 1e39))), Packed{});
  // Steps for single elements would be more than the elements.
  EXPECT_EQ(pack(Codec::kInt8, {Dtype::kFloat32, {1, 60, 1}}, bytes_of_values(std::vector<float>(60, 1.0F))), Packed{});
}

TEST(Int8, MalformedOnesAreRefused) {
  const Tensor type{Dtype::kFloat32, {1, 2, 10}};
  std::vector<float> values(20, 3.0F);
  const ByteVector good = pack(Codec::kInt8, type, bytes_of_values(values)).bytes;
  ASSERT_EQ(good.size(), 28U);
  EXPECT_EQ(refused(Codec::kInt8, type, good), "");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(refused(Codec::kInt8, type, std::span(good).first(length)), "");
  }
  ByteVector other = good;
  other.push_back({});
  EXPECT_NE(refused(Codec::kInt8, type, other), "");
  for (const float step : {kNan, kInfinity, -1.0F, std::numeric_limits<float>::max()}) {
    other = good;
    std::memcpy(other.data() + 4, &step, 4);
    EXPECT_NE(refused(Codec::kInt8, type, other).find("the step"), std::string::npos) << step;
  }
  other = good;
  other.back() = std::byte{0x80};
  EXPECT_NE(refused(Codec::kInt8, type, other).find("-128"), std::string::npos);
}

TEST(Loss, IsWhatTheCodecDid) {
  const std::vector<float> values{2048, 2049, 0, -4096};
  const Loss half = measure_loss(Codec::kHalf, row(Dtype::kFloat32, 4), bytes_of_values(values));
  EXPECT_DOUBLE_EQ(half.max, 1.0 / 4096);  // 2049 becomes 2048
  EXPECT_DOUBLE_EQ(half.mean, 1.0 / 4096 / 4);
  Dice dice(3);
  std::vector<double> many(1000);
  for (double& value : many) value = dice.real(-5, 5);
  const Tensor type = row(Dtype::kFloat64, many.size());
  const Loss int8 = measure_loss(Codec::kInt8, type, bytes_of_values(many));
  EXPECT_LE(int8.max, 0.5 / 127 * 1.00001);
  EXPECT_GT(int8.max, 0.4 / 127);
  EXPECT_NEAR(int8.mean, 0.25 / 127, 0.05 / 127);
}

TEST(Loss, IsNothingWhereNothingIsLost) {
  const ByteVector ones = bytes_of_values(std::vector<float>(100, 1.0F));
  for (const Codec codec : {Codec::kRaw, Codec::kBits, Codec::kZstd, Codec::kBitsZstd, Codec::kHalf}) {
    EXPECT_EQ(measure_loss(codec, row(Dtype::kFloat32, 100), ones).max, 0);
  }
  const std::vector<float> odd{kNan, kInfinity, 1, -kInfinity, kNan};
  EXPECT_EQ(measure_loss(Codec::kHalf, row(Dtype::kFloat32, 5), bytes_of_values(odd)).max, 0);
  EXPECT_EQ(measure_loss(Codec::kHalf, row(Dtype::kFloat32, 9), ByteVector(36)).mean, 0);
  EXPECT_EQ(measure_loss(Codec::kHalf, row(Dtype::kInt32, 9), ByteVector(36)).mean, 0);
}

}  // namespace
}  // namespace atl::infer::wire
