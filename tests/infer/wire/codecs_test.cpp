// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/codecs.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <map>

#include "codec_cases.h"
#include "tests/fuzz/wire_target.h"

namespace atl::infer::wire {
namespace {

using test::ByteVector;
using test::Dice;
using test::failure;
using test::few_valued;
using test::kEveryDtype;
using test::random_bytes;
using test::refused;
using test::row;
using test::there_and_back;
using test::unpacked;

constexpr std::array kLossless{Codec::kRaw, Codec::kBits, Codec::kZstd, Codec::kBitsZstd};

std::size_t size_of(Dtype dtype) { return static_cast<std::size_t>(bytes_of(dtype)); }

// kBits as documented, bit by bit; empty for more than 16 distinct elements.
ByteVector bits_by_hand(std::size_t element_bytes, const ByteVector& bytes) {
  std::map<ByteVector, std::size_t> places;
  ByteVector table;
  std::vector<std::size_t> elements;
  for (std::size_t at = 0; at < bytes.size(); at += element_bytes) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const ByteVector value(begin, begin + static_cast<std::ptrdiff_t>(element_bytes));
    const auto [place, is_new] = places.emplace(value, places.size());
    if (is_new) table.insert(table.end(), value.begin(), value.end());
    elements.push_back(place->second);
  }
  if (places.size() > 16) return {};
  const std::size_t bits = places.size() == 1 ? 0 : places.size() == 2 ? 1 : places.size() <= 4 ? 2 : 4;
  ByteVector packed{static_cast<std::byte>(places.size())};
  packed.insert(packed.end(), table.begin(), table.end());
  const std::size_t head = packed.size();
  packed.resize(head + (elements.size() * bits + 7) / 8);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    for (std::size_t bit = 0; bit < bits; ++bit) {
      const std::size_t at = i * bits + bit;
      if ((elements[i] >> bit & 1U) != 0) packed[head + at / 8] |= static_cast<std::byte>(1U << at % 8);
    }
  }
  return packed;
}

// Proves I-6.
TEST(Codecs, LosslessOnesGiveBackTheSameBits) {
  Dice dice(4);
  for (const Dtype dtype : kEveryDtype) {
    for (const std::size_t elements : {1U, 2U, 7U, 8U, 9U, 255U, 256U, 257U, 1000U, 4097U}) {
      for (const std::size_t distinct : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 200U}) {
        const ByteVector bytes = few_valued(dice, size_of(dtype), elements, distinct);
        const Tensor type = row(dtype, elements);
        for (const Codec codec : kLossless) {
          const Packed packed = pack(codec, type, bytes);
          EXPECT_TRUE(packed.codec == Codec::kRaw ? packed.bytes.empty() : packed.bytes.size() < bytes.size());
          ASSERT_EQ(there_and_back(codec, type, bytes), bytes)
              << to_string(codec) << " " << elements << " " << distinct;
        }
      }
    }
  }
}

TEST(Codecs, NoElementsAreSentAsTheyAre) {
  for (const Tensor& type : {row(Dtype::kFloat32, 0), Tensor{Dtype::kFloat32, {2, 0, 3, 4}}}) {
    for (int codec = 0; codec < 7; ++codec) {
      EXPECT_EQ(pack(static_cast<Codec>(codec), type, {}), Packed{});
      if (codec > 0) {
        EXPECT_NE(refused(static_cast<Codec>(codec), type, {}), "");
      }
    }
    EXPECT_EQ(refused(Codec::kRaw, type, {}), "");
    EXPECT_NE(refused(Codec::kRaw, type, ByteVector(1)), "");
  }
}

TEST(Codecs, BitsAreThoseThatAreDocumented) {
  Dice dice(5);
  for (const Dtype dtype : kEveryDtype) {
    for (int i = 0; i < 60; ++i) {
      const auto elements = static_cast<std::size_t>(dice.integer(1, 700));
      const auto distinct = static_cast<std::size_t>(dice.integer(1, 20));
      const ByteVector bytes = few_valued(dice, size_of(dtype), elements, distinct);
      const ByteVector expected = bits_by_hand(size_of(dtype), bytes);
      const Packed packed = pack(Codec::kBits, row(dtype, elements), bytes);
      if (expected.empty() || expected.size() >= bytes.size()) {
        EXPECT_EQ(packed, Packed{});
      } else {
        EXPECT_EQ(packed, (Packed{Codec::kBits, expected}));
      }
    }
  }
}

TEST(Codecs, TheSeventeenthValueIsFoundWhereverItIs) {
  for (const std::size_t at : {16U, 255U, 256U, 1023U}) {
    ByteVector bytes(1024);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 16);
    EXPECT_EQ(pack(Codec::kBits, row(Dtype::kUint8, 1024), bytes).codec, Codec::kBits);
    bytes[at] = std::byte{99};
    EXPECT_EQ(pack(Codec::kBits, row(Dtype::kUint8, 1024), bytes).codec, Codec::kRaw);
  }
}

TEST(Codecs, ElementsAreTheSameWhenTheirBitsAre) {
  const std::vector<float> values{0.0F, -0.0F, std::numeric_limits<float>::quiet_NaN(), 0.0F};
  std::vector<float> many;
  for (int i = 0; i < 25; ++i) many.insert(many.end(), values.begin(), values.end());
  const ByteVector bytes = test::bytes_of_values(many);
  const Tensor type = row(Dtype::kFloat32, many.size());
  EXPECT_EQ(pack(Codec::kBits, type, bytes).bytes.size(), 1 + 3 * 4 + 25U);
  EXPECT_EQ(there_and_back(Codec::kBits, type, bytes), bytes);
}

TEST(Codecs, MalformedBitsAreRefused) {
  Dice dice(6);
  for (const Dtype dtype : {Dtype::kBool, Dtype::kFloat16, Dtype::kFloat32, Dtype::kInt64}) {
    for (const std::size_t distinct : {1U, 2U, 3U, 4U, 5U, 16U}) {
      const std::size_t elements = 203;
      const Tensor type = row(dtype, elements);
      const ByteVector good = bits_by_hand(size_of(dtype), few_valued(dice, size_of(dtype), elements, distinct));
      EXPECT_EQ(refused(Codec::kBits, type, good), "");
      for (std::size_t length = 0; length < good.size(); ++length) {
        ASSERT_NE(refused(Codec::kBits, type, std::span(good).first(length)), "") << length;
      }
      ByteVector other = good;
      other.push_back({});
      EXPECT_NE(refused(Codec::kBits, type, other), "");
      for (const std::size_t count : {std::size_t{0}, distinct + 1, std::size_t{17}, std::size_t{255}}) {
        other = good;
        other[0] = static_cast<std::byte>(count);
        EXPECT_NE(refused(Codec::kBits, type, other), "");
      }
    }
  }
  // Place 3 of 3; a bit after the last of 3 elements.
  const ByteVector three{std::byte{3}, std::byte{10}, std::byte{11}, std::byte{12}, std::byte{0b100100}};
  EXPECT_EQ(unpacked(Codec::kBits, row(Dtype::kUint8, 3), three),
            (ByteVector{std::byte{10}, std::byte{11}, std::byte{12}}));
  ByteVector other = three;
  other.back() = std::byte{0b110100};
  EXPECT_NE(refused(Codec::kBits, row(Dtype::kUint8, 3), other).find("place 3 of 3"), std::string::npos);
  other.back() = std::byte{0b1100100};
  EXPECT_NE(refused(Codec::kBits, row(Dtype::kUint8, 3), other).find("after the last"), std::string::npos);
}

ByteVector zstd_of(const ByteVector& bytes) {
  ByteVector packed(ZSTD_compressBound(bytes.size()));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 3));
  return packed;
}

TEST(Codecs, AnyZstdFrameOfTheSizeIsRead) {
  const ByteVector bytes(1000, std::byte{7});
  EXPECT_EQ(unpacked(Codec::kZstd, row(Dtype::kUint8, 1000), zstd_of(bytes)), bytes);
}

TEST(Codecs, MalformedZstdIsRefused) {
  Dice dice(7);
  const ByteVector bytes = few_valued(dice, 1, 3000, 20);
  const Tensor type = row(Dtype::kUint8, bytes.size());
  const ByteVector good = zstd_of(bytes);
  EXPECT_EQ(refused(Codec::kZstd, type, good), "");
  for (std::size_t length = 0; length < good.size(); ++length) {
    ASSERT_NE(refused(Codec::kZstd, type, std::span(good).first(length)), "") << length;
  }
  EXPECT_NE(refused(Codec::kZstd, row(Dtype::kUint8, 2999), good).find("3000 bytes instead of 2999"),
            std::string::npos);
  EXPECT_NE(refused(Codec::kZstd, row(Dtype::kUint8, 3001), good), "");
  const auto with = [&](const ByteVector& front, const ByteVector& back) {
    ByteVector both = front;
    both.insert(both.end(), back.begin(), back.end());
    return refused(Codec::kZstd, type, both);
  };
  EXPECT_NE(with(good, {std::byte{0}}).find("not one zstd frame"), std::string::npos);
  EXPECT_NE(with(good, zstd_of({})).find("not one zstd frame"), std::string::npos);
  const ByteVector skippable{std::byte{0x50}, std::byte{0x2a}, std::byte{0x4d}, std::byte{0x18},
                             std::byte{0},    std::byte{0},    std::byte{0},    std::byte{0}};
  EXPECT_NE(with(skippable, good).find("does not begin as a zstd frame"), std::string::npos);
  for (int i = 0; i < 2000; ++i) static_cast<void>(refused(Codec::kZstd, type, test::mutated(dice, good)));
}

TEST(Codecs, BombsAreRefusedBeforeTheyTakeMemory) {
  const ByteVector bomb = zstd_of(ByteVector(std::size_t{64} << 20));
  EXPECT_LT(bomb.size(), 10000U);
  EXPECT_NE(refused(Codec::kZstd, row(Dtype::kUint8, 100), bomb), "");
  EXPECT_NE(refused(Codec::kBitsZstd, row(Dtype::kUint8, 100), bomb).find("are possible"), std::string::npos);
}

TEST(Codecs, BitsInsideZstdAreCheckedLikeOthers) {
  const Tensor type = row(Dtype::kFloat32, 800);
  Dice dice(8);
  ByteVector bits = bits_by_hand(4, few_valued(dice, 4, 800, 2));
  EXPECT_EQ(refused(Codec::kBitsZstd, type, zstd_of(bits)), "");
  bits[0] = std::byte{17};
  EXPECT_NE(refused(Codec::kBitsZstd, type, zstd_of(bits)), "");
  EXPECT_NE(refused(Codec::kBitsZstd, type, zstd_of({})), "");
}

TEST(Codecs, BitsOfARegularMaskBecomeFewerByZstd) {
  std::vector<float> mask(32768, 0.0F);
  for (std::size_t i = 0; i < mask.size(); i += 64) mask[i] = 1.0F;
  const ByteVector bytes = test::bytes_of_values(mask);
  const Tensor type{Dtype::kFloat32, {1, 8, 64, 64}};
  const Packed bits = pack(Codec::kBits, type, bytes);
  EXPECT_EQ(bits.bytes.size(), 1 + 8 + mask.size() / 8);
  const Packed both = pack(Codec::kBitsZstd, type, bytes);
  EXPECT_EQ(both.codec, Codec::kBitsZstd);
  EXPECT_LT(both.bytes.size(), bits.bytes.size() / 10);
  EXPECT_EQ(there_and_back(Codec::kBitsZstd, type, bytes), bytes);
  // Random bits do not compress: it stays with bits alone.
  Dice dice(9);
  EXPECT_EQ(pack(Codec::kBitsZstd, row(Dtype::kFloat32, 1000), few_valued(dice, 4, 1000, 2)).codec, Codec::kBits);
}

TEST(Codecs, WhatNobodyPacksIsRefused) {
  const Tensor type = row(Dtype::kUint8, 100);
  const ByteVector bytes(100);
  for (const Codec codec : {Codec{7}, Codec{255}}) {
    EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { pack(codec, type, bytes); }).find("choose half, int8 or jpeg"),
              std::string::npos);
    EXPECT_NE(refused(codec, type, bytes), "");
  }
}

TEST(Codecs, SizesThatDoNotFitTheTypeAreTheCallersFault) {
  ByteVector bytes(101);
  const Tensor type = row(Dtype::kFloat32, 25);
  for (int codec = 0; codec < 7; ++codec) {
    EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { pack(static_cast<Codec>(codec), type, bytes); }), "");
    EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { unpack(static_cast<Codec>(codec), type, bytes, bytes); }), "");
  }
}

// The fuzz target on packed messages of which some bytes are changed: broken promises abort the test.
TEST(Codecs, MutatedMessagesAreRefusedOrRead) {
  Dice dice(10);
  for (int codec = 0; codec < 8; ++codec) {
    for (int dtype = 0; dtype < 10; ++dtype) {
      const Tensor type{static_cast<Dtype>(dtype), {5, 4, 3}};
      const ByteVector bytes = few_valued(dice, size_of(type.dtype), 60, 3);
      ByteVector seed{static_cast<std::byte>(codec), static_cast<std::byte>(dtype), std::byte{5}, std::byte{4},
                      std::byte{3}};
      const Packed packed = codec < 7 ? pack(static_cast<Codec>(codec), type, bytes) : Packed{};
      const ByteVector& rest = packed.codec == Codec::kRaw ? bytes : packed.bytes;
      seed.insert(seed.end(), rest.begin(), rest.end());
      for (int i = 0; i < 200; ++i) fuzz::codecs(test::mutated(dice, seed));
    }
  }
}

}  // namespace
}  // namespace atl::infer::wire
