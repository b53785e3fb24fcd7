// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/bytes.h"

#include <gtest/gtest.h>

namespace atl {
namespace {

TEST(Bytes, ReadsWhatWasWritten) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.integer(std::uint8_t{0xab});
  writer.integer(std::uint16_t{0x1234});
  writer.integer(std::uint32_t{0xdeadbeef});
  writer.integer(std::uint64_t{0x0123456789abcdef});
  writer.string("atoll", 5);
  writer.string("", 0);
  EXPECT_EQ(std::to_integer<int>(bytes[1]), 0x34) << "little-endian";

  ByteReader reader(bytes, "a test");
  EXPECT_EQ(reader.integer<std::uint8_t>(), 0xab);
  EXPECT_EQ(reader.integer<std::uint16_t>(), 0x1234);
  EXPECT_EQ(reader.integer<std::uint32_t>(), 0xdeadbeef);
  EXPECT_EQ(reader.integer<std::uint64_t>(), 0x0123456789abcdefU);
  EXPECT_EQ(reader.string(5), "atoll");
  EXPECT_EQ(reader.string(0), "");
  EXPECT_NO_THROW(reader.expect_end());
}

TEST(Bytes, EveryShortFieldIsAProtocolErrorThatSaysWhere) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.integer(std::uint32_t{7});
  writer.string("atoll", 100);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::span<const std::byte> cut(bytes.data(), length);
    ByteReader reader(cut, "a test message");
    try {
      reader.integer<std::uint32_t>();
      reader.string(100);
      FAIL() << "no error with " << length << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
      EXPECT_NE(std::string(error.what()).find("a test message ends too early at byte"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Bytes, LimitsAreKeptOnBothSides) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  EXPECT_THROW(writer.string("atoll", 4), Error);
  EXPECT_TRUE(bytes.empty());
  writer.string("atoll", 5);
  EXPECT_THROW(ByteReader(bytes, "a test").string(4), Error);
  writer.integer(std::uint8_t{0});
  ByteReader reader(bytes, "a test");
  reader.string(5);
  EXPECT_THROW(reader.expect_end(), Error);
  EXPECT_EQ(reader.left(), 1U);
}

}  // namespace
}  // namespace atl
