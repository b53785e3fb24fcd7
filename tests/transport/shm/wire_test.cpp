// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "atoll/core/error.h"

namespace atl::transport::shm {
namespace {

std::vector<std::byte> text(const std::string& words) {
  const auto bytes = std::as_bytes(std::span(words.data(), words.size()));
  return {bytes.begin(), bytes.end()};
}

void append(std::vector<std::byte>& stream, const std::vector<std::byte>& more) {
  stream.insert(stream.end(), more.begin(), more.end());
}

/// Gives `bytes` to the parser as it has room.
std::size_t feed(MessageParser& parser, std::span<const std::byte> bytes) {
  const std::span<std::byte> space = parser.space();
  const std::size_t taken = std::min(space.size(), bytes.size());
  if (taken > 0) std::memcpy(space.data(), bytes.data(), taken);
  parser.add(taken);
  return taken;
}

TEST(ShmWire, MessagesSurviveAnyCut) {
  std::vector<std::byte> stream;
  append(stream, encode(MessageType::kControl, text("first")));
  append(stream, encode(MessageType::kControl, {}));
  append(stream, encode(MessageType::kBye, {}));
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    MessageParser parser;
    std::vector<std::string> seen;
    const auto take = [&](std::span<const std::byte> part) {
      feed(parser, part);
      while (const auto message = parser.next()) {
        seen.push_back(std::to_string(static_cast<int>(message->type)) + ":" +
                       std::string(reinterpret_cast<const char*>(message->body.data()), message->body.size()));
      }
    };
    take(std::span(stream).first(cut));
    take(std::span(stream).subspan(cut));
    EXPECT_EQ(seen, (std::vector<std::string>{"3:first", "3:", "4:"})) << "cut at " << cut;
  }
}

TEST(ShmWire, TheLargestMessagesPassOneAfterTheOther) {
  std::vector<std::byte> stream;
  const std::vector<std::byte> largest(kMaxControlBytes, std::byte{5});
  for (int i = 0; i < 50; ++i) append(stream, encode(MessageType::kControl, largest));
  MessageParser parser;
  int seen = 0;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t taken = feed(parser, std::span(stream).subspan(at));
    ASSERT_GT(taken, 0U);
    at += taken;
    while (const auto message = parser.next())
      seen += message->body.size() == largest.size() && message->body.back() == std::byte{5} ? 1 : 0;
  }
  EXPECT_EQ(seen, 50);
}

TEST(ShmWire, BodiesAreReadBack) {
  const Open open{1, 2, 1, 1 << 20};
  const Open got = decode<Open>({MessageType::kOpen, std::as_bytes(std::span(&open, 1))});
  EXPECT_EQ(got.group, 1U);
  EXPECT_EQ(got.index, 2U);
  EXPECT_EQ(got.bell, 1U);
  EXPECT_EQ(got.window_bytes, 1U << 20);
  EXPECT_THROW(decode<Hello>({MessageType::kHello, std::as_bytes(std::span(&open, 1))}), Error);
}

TEST(ShmWire, WrongBeginningsAreProtocolErrors) {
  const auto with = [](std::size_t at, std::uint8_t value) {
    auto bytes = encode(MessageType::kControl, text("x"));
    bytes[at] = static_cast<std::byte>(value);
    return bytes;
  };
  for (const auto& bytes : {with(0, 0), with(4, 0), with(4, 6), with(11, 0x80), with(9, 0xff)}) {
    MessageParser parser;
    feed(parser, bytes);
    try {
      parser.next();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    }
  }
}

TEST(ShmWire, MutatedStreamsGiveMessagesOrProtocolErrors) {
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> stream;
    for (int i = 0; i < 4; ++i)
      append(stream, encode(static_cast<MessageType>(1 + random() % 5), std::vector<std::byte>(random() % 60)));
    for (unsigned flips = random() % 4; flips > 0; --flips)
      stream[random() % stream.size()] = static_cast<std::byte>(random());
    MessageParser parser;
    try {
      for (std::size_t at = 0; at < stream.size();) {
        const std::size_t size = std::min<std::size_t>(stream.size() - at, 1 + random() % 100);
        at += feed(parser, std::span(stream).subspan(at, size));
        while (const auto message = parser.next()) {
          ASSERT_LE(message->body.size(), kMaxControlBytes);
          if (message->type == MessageType::kOpen) decode<Open>(*message);
        }
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kProtocol);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace atl::transport::shm
