// SPDX-License-Identifier: Apache-2.0
// Calls that cannot be executed, or not even started: without a thread, or with an input that breaks.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

#include "tests/collectives/group/calls.h"
#include "tests/support/no_threads.h"
#include "tests/support/peers.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

Ranks make() {
  RankOptions options;
  options.islands = layout("AB");
  return Ranks(options);
}

void expect_unavailable(const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
  }
}

void expect_sum(Group& group, bool submitted) {
  std::vector<float> data(100, 1.0f);
  run_or_submit(group, all_reduce(data), submitted);
  EXPECT_EQ(data, std::vector<float>(100, 2.0f));
}

TEST(BrokenCalls, ASubmittedCallWithoutAThreadIsRefusedWhole) {
  std::atomic<int> completions{0};
  std::vector<float> refused(100, 1.0f);
  auto ranks = make();
  {
    const NoNewThreads none;
    expect_unavailable([&] { ranks.group(0).submit(all_reduce(refused), [&](std::exception_ptr) { ++completions; }); });
  }
  ranks.run_ok([](Group& group) { expect_sum(group, true); });
  EXPECT_EQ(completions, 0);
  EXPECT_EQ(refused, std::vector<float>(100, 1.0f));
}

TEST(BrokenCalls, ACallThatWouldWaitWithoutAThreadIsRefusedWhole) {
  std::vector<float> refused(100, 1.0f);
  auto ranks = make();
  auto first = std::async(std::launch::async, [&] { ranks.group(0).barrier(); });
  wait_until("the first call", [&] { return ranks.group(0).sequence() == 1; });
  {
    const NoNewThreads none;
    expect_unavailable([&] { ranks.group(0).run(all_reduce(refused)); });
  }
  ranks.group(1).barrier();
  first.get();
  ranks.run_ok([](Group& group) { expect_sum(group, false); });
  EXPECT_EQ(refused, std::vector<float>(100, 1.0f));
}

// Proves C-9.
TEST(BrokenCalls, AMessageWithoutAThreadFailsOnce) {
  std::atomic<int> completions{0};
  std::byte data{};
  auto ranks = make();
  {
    const NoNewThreads none;
    EXPECT_NO_THROW(ranks.group(0).receive(1, 1, DataType::kUInt8, {&data, 1}, {}, [&](std::exception_ptr error, int) {
      ++completions;
      expect_unavailable([&] { error ? std::rethrow_exception(error) : void(); });
    }));
  }
  EXPECT_EQ(completions, 1);
  EXPECT_NE(ranks.group(0).error(), nullptr);
  ranks.shut_down();
  EXPECT_EQ(completions, 1);
}

TEST(BrokenCalls, AnInputThatBreaksIsAnErrorOnEveryRank) {
  for (const bool submitted : {false, true}) {
    auto ranks = make();
    ranks.run_ok([](Group& group) { group.barrier(); });
    const auto started = Clock::now();
    const auto errors = ranks.run([&](Group& group) {
      std::vector<float> data(100, 1.0f);
      Call call = all_reduce(data);
      call.progress = loaded_once([&] {
        if (group.rank() == 1) throw std::runtime_error("the device is gone");
        return true;
      });
      run_or_submit(group, call, submitted);
    });
    EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
    for (const auto& error : errors) {
      EXPECT_NE(error.find("all_reduce #1"), std::string::npos) << error;
      EXPECT_NE(error.find("on rank 1: the device is gone"), std::string::npos) << error;
    }
    EXPECT_TRUE(ranks.group(0).error() && ranks.group(1).error());
  }
}

/// Operations of an aborted library seem to have ended, but have left no values.
TEST(BrokenCalls, AnInputThatComesWithAFailureIsNotSent) {
  for (const bool submitted : {false, true}) {
    auto ranks = make();
    ranks.run_ok([](Group& group) { group.barrier(); });
    const auto errors = ranks.run([&](Group& group) {
      std::vector<float> data(100, 1.0f);
      Call call = all_reduce(data);
      call.operation = Operation::kBroadcast;
      call.root = 0;
      if (group.rank() == 0) {
        call.progress = loaded_once([&] {
          group.fail(Error(ErrorKind::kPeerLost, "the library is gone"));
          return true;
        });
      }
      run_or_submit(group, call, submitted);
    });
    for (const auto& error : errors) EXPECT_NE(error.find("the library is gone"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace atl::test
