// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/redis/protocol.h"
#include "tests/fuzz/redis_target.h"

namespace atl::test {
namespace {

using redis::Reply;
using redis::ReplyReader;
using testing::HasSubstr;
using namespace std::string_literals;

std::vector<Reply> replies_in(const std::string& text, std::size_t piece) {
  ReplyReader reader;
  std::vector<Reply> found;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    reader.feed(as_byte_span(text.substr(at, piece)));
    while (auto reply = reader.next()) found.push_back(*std::move(reply));
  }
  return found;
}

std::string error_of(const std::string& text) {
  try {
    replies_in(text, text.size());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    return error.what();
  }
  return "";
}

TEST(RedisReplies, EveryKindHoweverTheBytesAreCut) {
  const std::string text = "+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\0b\r\n$-1\r\n*2\r\n:1\r\n*2\r\n$0\r\n\r\n$-1\r\n*0\r\n"s;
  for (const std::size_t piece : {1, 2, 5, 1000}) {
    const auto found = replies_in(text, piece);
    ASSERT_EQ(found.size(), 7U) << piece;
    EXPECT_EQ(found[0].kind, Reply::Kind::kStatus);
    EXPECT_EQ(found[0].text, "OK");
    EXPECT_EQ(found[1].kind, Reply::Kind::kError);
    EXPECT_EQ(found[1].text, "ERR no");
    EXPECT_EQ(found[2].integer, -7);
    EXPECT_EQ(found[3].text, "a\0b"s);
    EXPECT_EQ(found[4].kind, Reply::Kind::kNil);
    ASSERT_EQ(found[5].elements.size(), 2U);
    EXPECT_EQ(found[5].elements[0].integer, 1);
    ASSERT_EQ(found[5].elements[1].elements.size(), 2U);
    EXPECT_EQ(found[5].elements[1].elements[1].kind, Reply::Kind::kNil);
    EXPECT_EQ(found[6].kind, Reply::Kind::kArray);
  }
}

TEST(RedisReplies, WhatIsNoReplyIsRefused) {
  EXPECT_THAT(error_of("HTTP/1.1 200 OK\r\n"), HasSubstr("invalid Redis reply"));
  EXPECT_THAT(error_of("\x15\x03\x03\x00\x02"), HasSubstr("invalid Redis reply"));
}

TEST(RedisReplies, LimitsComeBeforeMemory) {
  EXPECT_THAT(error_of("*70000\r\n"), HasSubstr("65536 elements"));
  EXPECT_THAT(error_of("*40000\r\n*40000\r\n"), HasSubstr("65536 elements"));
  EXPECT_THAT(error_of("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"), HasSubstr("levels"));
  ReplyReader reader;
  const std::vector<std::byte> megabyte(std::size_t{1} << 20, std::byte{'x'});
  reader.feed(as_byte_span("$99999999999\r\n"));
  EXPECT_THROW(
      {
        for (int i = 0; i < 65; ++i) {
          EXPECT_FALSE(reader.next());
          reader.feed(megabyte);
        }
      },
      Error);
}

TEST(RedisReplies, ANewReplyHasTheWholeBudgetAgain) {
  std::string text;
  std::string array = "*40000\r\n";
  for (int i = 0; i < 40000; ++i) array += ":1\r\n";
  for (int i = 0; i < 3; ++i) text += array;
  EXPECT_EQ(replies_in(text, 8192).size(), 3U);
}

TEST(RedisCommands, ArgumentsMayHoldAnyBytes) {
  const std::array<std::string, 3> command{"SET", "k\0\r\n"s, ""};
  EXPECT_EQ(redis::format_command(command), "*3\r\n$3\r\nSET\r\n$4\r\nk\0\r\n\r\n$0\r\n\r\n"s);
}

TEST(RedisReplies, MutatedBytesBreakNoPromise) {
  const std::string whole = "\x07*2\r\n$1\r\n0\r\n*3\r\n$1\r\na\r\n:1\r\n*-1\r\n+OK\r\n-NO\r\n$2\r\nab\r\n"s;
  std::mt19937 random(11);
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = whole;
    for (auto changes = 1 + random() % 4; changes > 0; --changes) {
      text[random() % text.size()] =
          static_cast<char>(random() % 2 ? random() % 256 : "*$:+-0123456789\r\n"[random() % 17]);
    }
    read += fuzz::redis_replies(as_byte_span(text)) ? 1 : 0;
    fuzz::redis_url("redis://" + text.substr(random() % 40));
  }
  EXPECT_GT(read, 100);
  EXPECT_LT(read, 19'900);
}

}  // namespace
}  // namespace atl::test
