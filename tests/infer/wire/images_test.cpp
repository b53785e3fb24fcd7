// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/images.h"

#include <gtest/gtest.h>

#include <limits>

#include "codec_cases.h"
#include "picture_cases.h"

namespace atl::infer::wire {
namespace {

using test::bytes_of_values;
using test::ByteVector;
using test::errors_between;
using test::measure_loss;
using test::picture;
using test::refused;
using test::there_and_back;
using test::values_of;

// The elements of pictures as a tensor has them, from pixels of which the channels lie together.
std::vector<std::uint8_t> planar(const JpegSize& size, const std::vector<std::uint8_t>& pixels) {
  std::vector<std::uint8_t> elements;
  for (std::size_t c = 0; c < size.channels; ++c) {
    for (std::size_t i = c; i < pixels.size(); i += size.channels) elements.push_back(pixels[i]);
  }
  return elements;
}

template <class T>
std::vector<T> scaled(const std::vector<std::uint8_t>& pixels, double low, double step) {
  std::vector<T> values;
  for (const std::uint8_t pixel : pixels) values.push_back(static_cast<T>(low + step * pixel));
  return values;
}

const JpegSize kSize{40, 30, 3};
const Tensor kPlanar{Dtype::kUint8, {1, 3, 30, 40}};

TEST(Images, AreOfTheseShapes) {
  const auto layout = [](Dtype dtype, Shape shape) { return image_layout({dtype, std::move(shape)}); };
  EXPECT_EQ(layout(Dtype::kUint8, {3, 30, 40}), (ImageLayout{1, 3, 30, 40, true}));
  EXPECT_EQ(layout(Dtype::kFloat32, {1, 30, 40}), (ImageLayout{1, 1, 30, 40, true}));
  EXPECT_EQ(layout(Dtype::kFloat64, {30, 40, 3}), (ImageLayout{1, 3, 30, 40, false}));
  EXPECT_EQ(layout(Dtype::kUint8, {5, 3, 30, 40}), (ImageLayout{5, 3, 30, 40, true}));
  EXPECT_EQ(layout(Dtype::kUint8, {5, 30, 40, 1}), (ImageLayout{5, 1, 30, 40, false}));
  EXPECT_EQ(layout(Dtype::kUint8, {2, 3, 3, 3}), (ImageLayout{2, 3, 3, 3, true})) << "the first reading counts";
  EXPECT_EQ(layout(Dtype::kUint8, {1, 3, 1, 65500}), (ImageLayout{1, 3, 1, 65500, true}));
  for (const Shape& shape : std::vector<Shape>{{30, 40},
                                               {2, 30, 40},
                                               {1, 2, 30, 40},
                                               {1, 4, 30, 40},
                                               {1, 1, 3, 30, 40},
                                               {3, 0, 40},
                                               {3, 30, 0},
                                               {0, 3, 30, 40},
                                               {3, 65501, 4},
                                               {3, 4, 65501},
                                               {2, 3, 32751, 4},
                                               {}}) {
    EXPECT_FALSE(layout(Dtype::kUint8, shape)) << to_string(Tensor{Dtype::kUint8, shape});
  }
  for (const Dtype dtype : {Dtype::kInt8, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt64, Dtype::kBool}) {
    EXPECT_FALSE(layout(dtype, {3, 30, 40}));
  }
}

TEST(Images, BytesComeBackNearlyTheSame) {
  const std::vector<std::uint8_t> elements = planar(kSize, picture(kSize));
  const Packed packed = pack(Codec::kJpeg, kPlanar, bytes_of_values(elements));
  ASSERT_EQ(packed.codec, Codec::kJpeg);
  EXPECT_LT(packed.bytes.size(), elements.size() / 2);
  const auto back = values_of<std::uint8_t>(test::unpacked(Codec::kJpeg, kPlanar, packed.bytes));
  const test::Errors errors = errors_between(elements, back);
  EXPECT_LT(errors.mean, 4);
  const Loss loss = measure_loss(Codec::kJpeg, kPlanar, bytes_of_values(elements));
  const double largest = *std::max_element(elements.begin(), elements.end());
  EXPECT_DOUBLE_EQ(loss.max, errors.most / largest);
  EXPECT_NEAR(loss.mean, errors.mean / largest, 1e-12);
}

// The same picture, however its tensor lies in memory.
TEST(Images, ChannelsLieWhereTheShapeSays) {
  const std::vector<std::uint8_t> pixels = picture(kSize);
  const Tensor interleaved{Dtype::kUint8, {30, 40, 3}};
  const Packed a = pack(Codec::kJpeg, interleaved, bytes_of_values(pixels));
  const Packed b = pack(Codec::kJpeg, kPlanar, bytes_of_values(planar(kSize, pixels)));
  EXPECT_EQ(a, b);
  const auto back = values_of<std::uint8_t>(test::unpacked(Codec::kJpeg, interleaved, a.bytes));
  EXPECT_EQ(planar(kSize, back), values_of<std::uint8_t>(test::unpacked(Codec::kJpeg, kPlanar, b.bytes)));
}

TEST(Images, SeveralLieBelowEachOther) {
  std::vector<std::uint8_t> elements;
  for (std::size_t turn = 0; turn < 3; ++turn) {
    const std::vector<std::uint8_t> one = planar(kSize, picture(kSize, turn));
    elements.insert(elements.end(), one.begin(), one.end());
  }
  const Tensor type{Dtype::kUint8, {3, 3, 30, 40}};
  const ByteVector back = there_and_back(Codec::kJpeg, type, bytes_of_values(elements));
  EXPECT_LT(errors_between(elements, values_of<std::uint8_t>(back)).mean, 5);
}

template <class F>
void expect_close(Dtype dtype, double low, double step) {
  const Tensor type{dtype, {1, 3, 30, 40}};
  const std::vector<F> values = scaled<F>(planar(kSize, picture(kSize)), low, step);
  const Packed packed = pack(Codec::kJpeg, type, bytes_of_values(values));
  ASSERT_EQ(packed.codec, Codec::kJpeg) << low << " " << step;
  const auto back = values_of<F>(test::unpacked(Codec::kJpeg, type, packed.bytes));
  EXPECT_LT(errors_between(values, back).mean, 4 * std::fabs(step)) << low << " " << step;
}

TEST(Images, FloatsOfAnyRangeComeBackNearlyTheSame) {
  for (const auto& [low, step] :
       std::vector<std::pair<double, double>>{{0, 1}, {0, 1.0 / 255}, {-2.1, 4.7 / 255}, {1e6, 1}, {-1e30, 1e27}}) {
    expect_close<float>(Dtype::kFloat32, low, step);
    expect_close<double>(Dtype::kFloat64, low, step);
  }
  const std::vector<float> flat(3600, -0.25F);
  const Tensor type{Dtype::kFloat32, {1, 3, 30, 40}};
  EXPECT_EQ(values_of<float>(there_and_back(Codec::kJpeg, type, bytes_of_values(flat))), flat);
}

TEST(Images, WhatIsNoneIsSentAsItIs) {
  const std::vector<float> values = scaled<float>(planar(kSize, picture(kSize)), 0, 0.1);
  EXPECT_EQ(pack(Codec::kJpeg, {Dtype::kFloat32, {1, 2, 45, 40}}, bytes_of_values(values)), Packed{});
  const Tensor type{Dtype::kFloat32, {1, 3, 30, 40}};
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> changed = values;
    changed[1234] = odd;
    EXPECT_EQ(pack(Codec::kJpeg, type, bytes_of_values(changed)), Packed{});
  }
  EXPECT_EQ(pack(Codec::kJpeg, type, bytes_of_values(scaled<float>(planar(kSize, picture(kSize)), 0, 1e-43))), Packed{})
      << "float32 has no such step";
  const std::vector<double> far = scaled<double>(planar(kSize, picture(kSize)), 1e300, 1e297);
  EXPECT_EQ(pack(Codec::kJpeg, {Dtype::kFloat64, {1, 3, 30, 40}}, bytes_of_values(far)), Packed{});
  EXPECT_EQ(pack(Codec::kJpeg, {Dtype::kUint8, {3, 4, 4}}, ByteVector(48)), Packed{}) << "the file would be longer";
}

TEST(Images, MalformedOnesAreRefused) {
  const Tensor type{Dtype::kFloat32, {1, 3, 30, 40}};
  const std::vector<float> values = scaled<float>(planar(kSize, picture(kSize)), -1, 0.01);
  const ByteVector good = pack(Codec::kJpeg, type, bytes_of_values(values)).bytes;
  EXPECT_EQ(refused(Codec::kJpeg, type, good), "");
  for (std::size_t length = 0; length < good.size(); length += length < 16 ? 1 : 37) {
    EXPECT_NE(refused(Codec::kJpeg, type, std::span(good).first(length)), "") << length;
  }
  const auto with = [&](std::size_t place, float value) {
    ByteVector other = good;
    std::memcpy(other.data() + 4 * place, &value, 4);
    return refused(Codec::kJpeg, type, other);
  };
  const float most = std::numeric_limits<float>::max();
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_NE(with(0, wrong).find("values from"), std::string::npos);
    EXPECT_NE(with(1, wrong).find("values from"), std::string::npos);
  }
  EXPECT_NE(with(1, -1.0F).find("values from"), std::string::npos);
  EXPECT_NE(with(1, most).find("values from"), std::string::npos);
  EXPECT_EQ(with(0, most), "");
  EXPECT_NE(refused(Codec::kJpeg, kPlanar, good), "") << "bytes have no such head";
  EXPECT_NE(refused(Codec::kJpeg, {Dtype::kFloat32, {3600}}, good).find("is not an image"), std::string::npos);
  EXPECT_NE(refused(Codec::kJpeg, {Dtype::kFloat32, {1, 3, 40, 30}}, good).find("another size"), std::string::npos);
}

}  // namespace
}  // namespace atl::infer::wire
