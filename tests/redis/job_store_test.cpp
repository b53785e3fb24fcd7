// SPDX-License-Identifier: Apache-2.0
// The store over a real server, with faults between them. What every store must do is in
// tests/python/test_redis_store.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <map>
#include <set>

#include "atoll/core/error.h"
#include "atoll/redis/job_store.h"
#include "atoll/redis/script.h"
#include "atoll/redis/server.h"
#include "tests/redis/server_process.h"
#include "tests/support/error_of.h"
#include "tests/support/relay.h"

namespace atl::test {
namespace {

using redis::Connection;
using redis::JobStore;
using redis::LifeSigns;
using redis::Reply;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr LifeSigns kQuick{milliseconds(50), milliseconds(400)};
constexpr LifeSigns kMute{std::chrono::hours(1), milliseconds(400)};  // as good as dead soon

Deadline soon() { return Deadline::after(seconds(20)); }

class RedisJobStore : public testing::Test {
 protected:
  std::shared_ptr<JobStore> open(const std::string& options = "job=j", const LifeSigns& signs = kQuick) {
    return JobStore::open(server_.url(options), soon(), signs);
  }

  /// In another process, because one process is one member.
  pid_t member(const LifeSigns& signs, const std::string& options) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = JobStore::open(server_.url(options), soon(), signs);
      store->set("old", "value", soon());
      static_cast<void>(!::write(ready[1], "x", 1));
      ::pause();
    }
    char byte = 0;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    return child;
  }

  static void end(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }

  ServerProcess server_;
};

// Proves S-6.
TEST_F(RedisJobStore, AChangeIsMadeOnceWhereverTheConnectionBreaks) {
  const auto direct = open();
  Relay relay(server_.address());
  auto url = server_.url("job=j");
  url.place = transport::parse_host_port(relay.address());
  const auto store = JobStore::open(url, soon(), {std::chrono::hours(1), std::chrono::hours(1)});
  std::int64_t sum = store->add("sum", 1, soon());
  int cuts = 0;
  for (std::uint64_t bytes = 1; bytes < 1200; bytes += 37) {
    // In the middle of the command, or after it, while the answer is on its way.
    relay.cut_after(bytes, bytes % 2 == 0 ? Relay::Cut::kEnd : Relay::Cut::kReset);
    for (int calls = 0; calls < 3; ++calls) {
      EXPECT_EQ(store->add("sum", 1, soon()), ++sum);
      store->append("text", "x", soon());
      store->push("queue", "v", soon());
    }
    ++cuts;
  }
  EXPECT_EQ(direct->add("sum", 0, soon()), sum);
  EXPECT_EQ(direct->get("text", soon()).size(), static_cast<std::size_t>(3 * cuts));
  EXPECT_EQ(direct->length("queue", soon()), 3 * cuts);
}

/// A connection that was given up delivers after the one that replaced it.
TEST_F(RedisJobStore, AChangeThatArrivesAfterALaterOneIsNotMade) {
  const auto store = open();
  Connection connection(server_.url("job=j"), nullptr, soon());
  const std::vector<std::string> ask{"HGET", "atoll:{j}:job", "incarnation"};
  const std::string incarnation = connection.call(ask, soon()).text;
  const auto append = [&](int change, const std::string& value) {
    const std::vector<std::string> command{
        "EVAL", redis::kCallScript,     "1",  "atoll:{j}:job", "atoll:{j}:", incarnation, "me",
        "0",    std::to_string(change), "60", "append",        "text",       value};
    return connection.call(command, soon());
  };
  EXPECT_NE(append(1, "a").kind, Reply::Kind::kError);
  EXPECT_NE(append(3, "c").kind, Reply::Kind::kError);
  const Reply late = append(2, "b");
  EXPECT_EQ(late.kind, Reply::Kind::kError);
  EXPECT_THAT(late.text, HasSubstr("ATOLLLATE"));
  EXPECT_NE(append(3, "c").kind, Reply::Kind::kError);  // repeated: no effect
  EXPECT_NE(append(4, "d").kind, Reply::Kind::kError);
  const auto text = store->get("text", soon());
  EXPECT_EQ(std::string(text.begin(), text.end()), "acd");
}

// Proves S-8.
TEST_F(RedisJobStore, AServerThatStallsIsAnErrorInTime) {
  const auto store = open();
  server_.signal(SIGSTOP);
  const auto start = Clock::now();
  const auto error = error_of([&] { store->set("key", "value", Deadline::after(milliseconds(600))); });
  EXPECT_LT(Clock::now() - start, milliseconds(1600));
  EXPECT_EQ(error.kind(), ErrorKind::kStore);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(server_.address()), HasSubstr("does not answer")));
  server_.signal(SIGCONT);
  EXPECT_EQ(store->add("sum", 2, soon()), 2);  // the change of unknown outcome does not interfere
  EXPECT_EQ(store->add("sum", 2, soon()), 4);
}

TEST_F(RedisJobStore, AServerThatIsAwayIsTriedUntilTheDeadline) {
  const auto store = open();
  server_.kill();
  const auto start = Clock::now();
  const auto error = error_of([&] { store->set("key", "value", Deadline::after(seconds(3))); });
  EXPECT_GT(Clock::now() - start, milliseconds(2400));
  EXPECT_LT(Clock::now() - start, seconds(4));
  EXPECT_EQ(error.kind(), ErrorKind::kStore);
}

TEST_F(RedisJobStore, AKeyThatDoesNotComeIsNamed) {
  const auto store = open();
  const auto error = error_of([&] { store->get("absent", Deadline::after(milliseconds(30))); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("\"absent\""), HasSubstr("job \"j\""), HasSubstr(server_.address())));
  EXPECT_EQ(error_of([&] { store->pop("empty", Deadline::after(milliseconds(30))); }).kind(), ErrorKind::kTimeout);
}

TEST_F(RedisJobStore, ManyThreadsAndClones) {
  const auto store = open();
  std::vector<std::future<void>> all;
  for (int thread = 0; thread < 6; ++thread) {
    all.push_back(std::async(std::launch::async, [&, mine = thread % 2 == 0 ? store->clone() : store] {
      for (int i = 0; i < 50; ++i) mine->add("sum", 1, soon());
      mine->wait({"go"}, soon());
    }));
  }
  store->set("go", "", soon());
  for (auto& one : all) one.get();
  EXPECT_EQ(store->add("sum", 0, soon()), 300);
}

// Proves S-7.
TEST_F(RedisJobStore, TheKeysAreLostWithAServerThatHasNoData) {
  const auto store = open();
  store->set("key", "value", soon());
  server_.kill();
  server_.start();
  const auto error = error_of([&] { store->get("key", soon()); });
  EXPECT_EQ(error.kind(), ErrorKind::kStore);
  EXPECT_THAT(error.what(), HasSubstr("has lost the keys of job \"j\""));
  const auto again = open("job=k");
  EXPECT_THAT(error_of([&] { store->add("sum", 1, soon()); }).what(), HasSubstr("has lost the keys"));
}

// Proves S-7.
TEST_F(RedisJobStore, OlderDataIsNoticed) {
  const auto store = open();
  store->set("key", "value", soon());
  const auto old = server_.ask({"HGETALL", "atoll:{j}:replies"});
  store->set("key", "newer", soon());
  ASSERT_EQ(old.elements.size(), 2U);
  server_.ask({"HSET", "atoll:{j}:replies", old.elements[0].text, old.elements[1].text});
  EXPECT_THAT(error_of([&] { store->get("key", soon()); }).what(), HasSubstr("older keys of job \"j\""));
}

TEST_F(RedisJobStore, KeysExpireUnlessAMemberIsAlive) {
  const auto store = open("job=j&expiry=60");
  store->set("key", "value", soon());
  store->push("queue", "value", soon());
  const auto keys = server_.ask({"KEYS", "*"});
  ASSERT_GE(keys.elements.size(), 5U);
  for (const auto& key : keys.elements) {
    const auto left = server_.ask({"TTL", key.text}).integer;
    EXPECT_GT(left, 50) << key.text;
    EXPECT_LE(left, 60) << key.text;
    server_.ask({"EXPIRE", key.text, "10"});
  }
  const auto until = soon();  // a sign of life gives them their time back
  for (const auto& key : keys.elements) {
    while (server_.ask({"TTL", key.text}).integer <= 10 && !until.expired()) std::this_thread::yield();
    EXPECT_GT(server_.ask({"TTL", key.text}).integer, 10) << key.text;
  }
}

TEST_F(RedisJobStore, TheLastOneTakesTheKeysAlong) {
  auto first = open();
  auto second = JobStore::open(server_.url("job=j&rank=0&world_size=1"), soon(), kQuick);
  first->set("key", "value", soon());
  first.reset();
  EXPECT_EQ(second->get("key", soon()), "value");
  second.reset();
  EXPECT_EQ(server_.ask({"DBSIZE"}).integer, 0);
}

TEST_F(RedisJobStore, AJobWhoseMembersHaveDiedBeginsAnew) {
  const pid_t alive = member(kQuick, "job=j&rank=0&world_size=2");
  const auto error = error_of([&] { open("job=j&rank=0&world_size=2"); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 of job \"j\""), HasSubstr("is already alive")));
  EXPECT_THAT(error_of([&] { open("job=j&rank=1&world_size=3"); }).what(), HasSubstr("has 2 ranks, not 3"));
  end(alive);
  const auto fresh = open("job=j&rank=0&world_size=2");
  EXPECT_FALSE(fresh->has({"old"}, soon()));
  const pid_t dead = member(kMute, "job=j&rank=1&world_size=2");
  end(dead);
  EXPECT_THAT(error_of([&] { open("job=j&rank=1&world_size=2"); }).what(), HasSubstr("has died, while others"));
}

TEST_F(RedisJobStore, AKilledJobStartsAgainThoughOneWasHeardLater) {
  constexpr LifeSigns kForgotten{std::chrono::hours(1), std::chrono::hours(1)};  // the second finds the first alive
  end(member(kForgotten, "job=j&rank=0&world_size=2"));
  end(member(kForgotten, "job=j&rank=1&world_size=2"));
  const std::string later = server_.ask({"HGET", "atoll:{j}:ranks", "1"}).text;
  server_.ask({"ZINCRBY", "atoll:{j}:alive", "1000", later});
  EXPECT_FALSE(open("job=j&rank=0&world_size=2")->has({"old"}, soon()));
}

// After an outage of the server, the first process to connect must not take the job from live members.
TEST_F(RedisJobStore, AJobThatCouldGiveNoSignsIsNotTakenFromIt) {
  constexpr LifeSigns kRare{milliseconds(2000), milliseconds(1000)};
  const pid_t alive = member(kRare, "job=j&rank=0&world_size=2");
  const std::string client = server_.ask({"HGET", "atoll:{j}:ranks", "0"}).text;
  server_.ask({"ZINCRBY", "atoll:{j}:alive", "-10000", client});
  EXPECT_TRUE(open("job=j&rank=1&world_size=2", kRare)->has({"old"}, soon()));
  end(alive);
}

TEST_F(RedisJobStore, AProcessThatWasTakenForDeadLearnsIt) {
  const auto silent = open("job=j", kMute);
  silent->set("key", "value", soon());
  server_.ask({"DEL", "atoll:{j}:alive"});  // as after a long silence
  const auto other = JobStore::open(server_.url("job=j&rank=0&world_size=1"), soon(), kQuick);
  EXPECT_THAT(error_of([&] { silent->get("key", soon()); }).what(), HasSubstr("was started again by other processes"));
}

TEST_F(RedisJobStore, AForkedProcessIsToldToMakeItsOwn) {
  const auto store = open();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto error = error_of([&] { store->get("key", soon()); });
    const bool told =
        error.kind() == ErrorKind::kInvalidArgument && std::string(error.what()).find("forked") != std::string::npos;
    const auto mine = open("job=mine");
    mine->set("key", "value", soon());
    ::_exit(told && mine->get("key", soon()) == "value" ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  store->set("key", "value", soon());
}

TEST_F(RedisJobStore, ListsKeysAndMembers) {
  const auto store = open("job=train/1&rank=3&world_size=8");
  std::vector<std::pair<std::string, std::string>> values;
  for (int i = 0; i < 2000; ++i) values.emplace_back("key" + std::to_string(i), std::string(50, 'v'));
  store->multi_set(values, soon());
  const auto keys = store->list(soon());
  EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), 2000U);
  EXPECT_EQ(store->count(soon()), 2000);
  store->publish(3, "{\"rank\": 3}", soon());
  const auto jobs = redis::list_jobs(server_.url(""), soon());
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].name, "train/1");
  EXPECT_EQ(jobs[0].world_size, 8);
  EXPECT_EQ(jobs[0].alive, 1);
  EXPECT_EQ(jobs[0].members, (std::map<int, std::string>{{3, "{\"rank\": 3}"}}));
  EXPECT_TRUE(redis::list_jobs(server_.url("job=other"), soon()).empty());
}

TEST_F(RedisJobStore, TheScriptsMayBeForgotten) {
  const auto store = open();
  store->set("key", "value", soon());
  server_.ask({"SCRIPT", "FLUSH"});
  EXPECT_EQ(store->get("key", soon()), "value");
}

TEST(RedisJobStoreAlone, NobodyListens) {
  auto url = redis::parse_url("redis://127.0.0.1:1/?job=j");
  const auto error = error_of([&] { JobStore::open(url, Deadline::after(milliseconds(100))); });
  EXPECT_EQ(error.kind(), ErrorKind::kStore);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("redis://127.0.0.1:1/0"), HasSubstr("refused")));
}

}  // namespace
}  // namespace atl::test
