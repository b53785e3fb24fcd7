// SPDX-License-Identifier: Apache-2.0
// Replies of a server that is not a Redis server, or that misbehaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "atoll/core/error.h"
#include "tests/fuzz/redis_answers_target.h"
#include "tests/support/error_of.h"

namespace atl::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(MadeUpReplies, AtRandom) {
  std::mt19937 random(20261125);  // NOLINT
  int ended_well = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> bytes(1 + random() % 24);
    for (std::byte& byte : bytes) byte = std::byte(random() % (i % 2 == 0 ? 256 : 16));
    bytes[0] = std::byte(random() % 64);
    ended_well += fuzz::redis_answers(bytes) ? 1 : 0;
  }
  EXPECT_GT(ended_well, 100);
  EXPECT_LT(ended_well, 2900);
}

TEST(MadeUpReplies, KeysThatNeverEndAreAnErrorInTime) {
  auto& server = fuzz::ArbitraryServer::get();
  server.answers.set([](const redis::Reply&) { return "*2\r\n$1\r\n5\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n"; });
  redis::JobStore store(server.member);
  const auto error = error_of([&] { store.list(Deadline::after(milliseconds(20))); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("not all keys were listed"));
  const auto listing = error_of([&] { redis::list_jobs(server.answers.url(""), Deadline::after(milliseconds(200))); });
  EXPECT_EQ(listing.kind(), ErrorKind::kStore) << listing.what();
}

TEST(MadeUpReplies, ATimeThatIsNone) {
  auto& server = fuzz::ArbitraryServer::get();
  for (const std::string time : {"$19\r\n9223372036854775807\r\n", "$20\r\n-9223372036854775808\r\n", "$-1\r\n"}) {
    server.answers.set([&](const redis::Reply& command) {
      return command.elements[0].text == "TIME" ? "*1\r\n" + time : "*2\r\n$7\r\ncreated\r\n$1\r\n1\r\n";
    });
    const auto error =
        error_of([&] { redis::list_jobs(server.answers.url("job=j"), Deadline::after(std::chrono::seconds(20))); });
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    EXPECT_THAT(error.what(), HasSubstr("sent an invalid time"));
  }
  server.answers.set(nullptr);
}

}  // namespace
}  // namespace atl::test
