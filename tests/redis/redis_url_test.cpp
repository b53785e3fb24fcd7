// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "atoll/core/error.h"
#include "atoll/redis/url.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using redis::parse_url;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(RedisUrl, AllParts) {
  const auto url = parse_url(
      "rediss://me:p%40ss%2Fword@[::1]:7000/12?job=train%401&expiry=120&ca=/ca.pem&cert=/c.pem&key=/k.pem&rank=2&"
      "world_size=4");
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.place.host, "::1");
  EXPECT_EQ(url.place.port, 7000);
  EXPECT_EQ(url.user, "me");
  EXPECT_EQ(url.password, "p@ss/word");
  EXPECT_EQ(url.database, 12);
  EXPECT_EQ(url.job, "train@1");
  EXPECT_EQ(url.expiry, std::chrono::seconds(120));
  EXPECT_EQ(url.authorities_file, "/ca.pem");
  EXPECT_EQ(url.certificate_file, "/c.pem");
  EXPECT_EQ(url.key_file, "/k.pem");
  EXPECT_EQ(url.rank, 2);
  EXPECT_EQ(url.world_size, 4);
  EXPECT_EQ(redis::to_string(url), "rediss://[::1]:7000/12");
}

TEST(RedisUrl, WhatMayBeLeftOut) {
  const auto url = parse_url("server");
  EXPECT_FALSE(url.tls);
  EXPECT_EQ(redis::to_string(url), "redis://server:6379/0");
  EXPECT_EQ(url.expiry, redis::kDefaultExpiry);
  EXPECT_EQ(parse_url("server:1234").place.port, 1234);
  EXPECT_EQ(parse_url("redis://server/").database, 0);
  EXPECT_EQ(parse_url("redis://server/?").job, "");
  EXPECT_EQ(parse_url("redis://[::1]/2").place.port, 6379);
  EXPECT_EQ(parse_url("redis://:a/b:c@server/2").password, "a/b:c");
}

struct Bad {
  const char* text;
  const char* said;
};

class BadRedisUrl : public testing::TestWithParam<Bad> {};

TEST_P(BadRedisUrl, IsRefusedAndNamed) {
  const auto& [text, said] = GetParam();
  try {
    parse_url(text);
    FAIL() << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("Redis"), HasSubstr(said), Not(HasSubstr("secret")))) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadRedisUrl,
    testing::Values(Bad{"", "no host"}, Bad{"redis://", "no host"}, Bad{"redis://:6379", "has no host"},
                    Bad{"http://server", "does not begin with redis://"},
                    Bad{"me:secret://x@server", "does not begin with redis://"},
                    Bad{"redis://server:99999", "with a port between"}, Bad{"redis://server:0", "port \"0\""},
                    Bad{"redis://server/first", "database \"first\""}, Bad{"redis://server/-1", "database \"-1\""},
                    Bad{"redis://me@server", "no password"}, Bad{"redis://:secret%4@server", "% without two"},
                    Bad{"redis://me:secret?secret@server", "after a ?"}, Bad{"redis://server?jop=x", "option \"jop\""},
                    Bad{"redis://server?job=a%20b", "job's name"}, Bad{"redis://server?job=a{b", "job's name"},
                    Bad{"redis://server?expiry=1", "expiry \"1\""}, Bad{"redis://server?rank=-1", "rank \"-1\""},
                    Bad{"redis://server?cert=/c.pem", "cert= and key="}, Bad{"redis://::1", "brackets"}));

class RedisEnvironment : public testing::Test {
 protected:
  ~RedisEnvironment() override {
    for (const char* name : {"ATOLL_REDIS_PASSWORD_FILE", "ATOLL_REDIS_CA", "ATOLL_REDIS_CERT", "ATOLL_REDIS_KEY"}) {
      ::unsetenv(name);
    }
  }

  std::string file_with(const std::string& text, unsigned mode) {
    const std::string path = folder_.write("password", text, mode);
    ::setenv("ATOLL_REDIS_PASSWORD_FILE", path.c_str(), 1);
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(RedisEnvironment, FillsWhatTheUrlLeavesOpen) {
  file_with("word\n", 0600);
  ::setenv("ATOLL_REDIS_CA", "/ca.pem", 1);
  const auto url = redis::with_environment(parse_url("rediss://server"));
  EXPECT_EQ(url.password, "word");
  EXPECT_EQ(url.authorities_file, "/ca.pem");
  EXPECT_EQ(redis::with_environment(parse_url("redis://:mine@server")).password, "mine");
}

TEST_F(RedisEnvironment, RefusesAFileThatOthersMayRead) {
  const auto path = file_with("secret", 0644);
  try {
    redis::with_environment(parse_url("redis://server"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ATOLL_REDIS_PASSWORD_FILE"), HasSubstr(path), HasSubstr("chmod 600"),
                                    Not(HasSubstr("secret"))));
  }
}

TEST_F(RedisEnvironment, ACertificateNeedsItsKey) {
  ::setenv("ATOLL_REDIS_CERT", "/c.pem", 1);
  EXPECT_THROW(redis::with_environment(parse_url("rediss://server")), Error);
}

}  // namespace
}  // namespace atl::test
