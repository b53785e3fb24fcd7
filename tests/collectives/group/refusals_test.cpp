// SPDX-License-Identifier: Apache-2.0
// One rank refuses a call before it has sent anything: the others are notified at once, and all continue together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>

#include "atoll/collectives/refusals.h"
#include "tests/collectives/group/calls.h"
#include "tests/support/error_of.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kAtOnce = 5s;  // far below the timeout of 20 s, on a busy machine too

void expect_sum_of_ranks(Group& group, std::size_t count) {
  std::vector<float> data(count, static_cast<float>(group.rank() + 1));
  group.run(all_reduce(data));
  const auto ranks = static_cast<float>(group.size());
  EXPECT_EQ(data, std::vector<float>(count, ranks * (ranks + 1) / 2)) << "rank " << group.rank();
}

struct RefusalCase {
  const char* letters;
  int refusing;
  std::size_t count;
  bool submitted;
  transport::TransportChoice transport;
};

class RefusedOperation : public ::testing::TestWithParam<RefusalCase> {};

// Proves C-8.
TEST_P(RefusedOperation, EndsOnAllOthersAndTheGroupGoesOn) {
  const RefusalCase& at = GetParam();
  RankOptions options;
  options.islands = layout(at.letters);
  options.transport = at.transport;
  Ranks ranks(options);
  ranks.run_ok([&](Group& group) {
    expect_sum_of_ranks(group, at.count);
    for (int round = 0; round < 4; ++round) {
      const std::string name = "all_reduce #" + std::to_string(2 * round + 1);
      if (group.rank() == at.refusing) {
        group.refuse("no such tensor");
      } else {
        std::vector<float> data(at.count, 1.0f);
        const auto begin = Clock::now();
        const Error error = error_of([&] { run_or_submit(group, all_reduce(data), at.submitted); });
        EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(name), HasSubstr("on rank " + std::to_string(group.rank())),
                          HasSubstr("rank " + std::to_string(at.refusing) + " refused it: no such tensor")));
        EXPECT_LT(Clock::now() - begin, kAtOnce);
      }
      expect_sum_of_ranks(group, at.count);
    }
    EXPECT_EQ(group.sequence(), 9u);
  });
}

constexpr auto kShm = transport::TransportChoice::kShm;
constexpr auto kTcp = transport::TransportChoice::kTcp;

INSTANTIATE_TEST_SUITE_P(
    Layouts, RefusedOperation,
    ::testing::Values(RefusalCase{"AA", 1, 1, false, kShm}, RefusalCase{"AA", 0, 1000000, true, kShm},
                      RefusalCase{"AB", 0, 3, true, kTcp}, RefusalCase{"ABA", 2, 1000, false, kTcp},
                      RefusalCase{"ABAB", 1, 500000, false, kShm}, RefusalCase{"AAAAAABB", 5, 70000, true, kShm},
                      RefusalCase{"AAAABBBBCC", 0, 1, false, kTcp}),
    [](const auto& at) {
      return std::string(at.param.letters) + std::to_string(at.param.count) + (at.param.submitted ? "Submitted" : "");
    });

// Ranks cut one operation into different numbers of calls, as the refusing rank cuts it into none.
TEST(RefusedOperations, MayHaveAnyNumberOfParts) {
  RankOptions options;
  options.islands = layout("ABA");
  Ranks ranks(options);
  ranks.run_ok([&](Group& group) {
    std::atomic<int> refused{0};
    std::vector<float> data(1000, 1.0f);
    if (group.rank() == 1) {
      group.refuse("out of memory");
    } else {
      const std::uint32_t parts = 5;
      std::latch over(parts);
      for (std::uint32_t part = 0; part < parts; ++part) {
        Call call = all_reduce(data);
        call.part = part;
        group.submit(std::move(call), [&](std::exception_ptr error) {
          if (error) ++refused;
          over.count_down();
        });
      }
      over.wait();
      EXPECT_EQ(refused, 5);
    }
    expect_sum_of_ranks(group, 10);
  });
}

// The others are still elsewhere when the refusal arrives: they get the error when they reach the call.
TEST(RefusedOperations, AreKnownToARankThatComesLater) {
  RankOptions options;
  options.islands = layout("AAB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  std::latch refused(1);
  ranks.run_ok([&](Group& group) {
    std::vector<float> data(10, 1.0f);
    if (group.rank() == 0) {
      group.refuse("the first");
      group.refuse("the second");
      refused.count_down();
    } else {
      refused.wait();
      EXPECT_THAT(error_of([&] { group.run(all_reduce(data)); }).what(), HasSubstr("rank 0 refused it: the first"));
      EXPECT_THAT(error_of([&] { group.barrier(); }).what(), HasSubstr("rank 0 refused it: the second"));
    }
    expect_sum_of_ranks(group, 10);
  });
}

TEST(RefusedOperations, MayBeRefusedByAll) {
  RankOptions options;
  options.islands = layout("ABAB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) {
    for (int round = 0; round < 20; ++round) {
      group.refuse("rank " + std::to_string(group.rank()));
      expect_sum_of_ranks(group, 100);
    }
  });
}

// A vendor's library call that has started waits for the refusing rank and cannot be cancelled.
TEST(RefusedOperations, EndTheGroupWhereTheyAreCommitted) {
  RankOptions options;
  options.islands = layout("AB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  EXPECT_EQ(ranks.group(1).commit(), 1u);
  std::promise<void> failed;
  ranks.group(1).when_failed([&] { failed.set_value(); });
  ranks.group(0).refuse("no such tensor");
  ASSERT_EQ(failed.get_future().wait_for(kAtOnce), std::future_status::ready);
  const Error error = error_of([&] { ranks.group(1).barrier(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("operation #1"), HasSubstr("rank 0 refused it: no such tensor")));
}

TEST(RefusedOperations, CannotBeCommittedAfterwards) {
  RankOptions options;
  options.islands = layout("AB");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  ranks.group(0).refuse("no such tensor");
  ranks.group(0).refuse("no such tensor either");
  std::vector<float> data(1, 1.0f);
  EXPECT_THAT(error_of([&] { ranks.group(1).run(all_reduce(data)); }).what(), HasSubstr("no such tensor"));
  EXPECT_THAT(error_of([&] { ranks.group(1).commit(); }).what(), HasSubstr("no such tensor either"));
  EXPECT_EQ(ranks.group(1).error(), nullptr);
  ranks.run_ok([](Group& group) { expect_sum_of_ranks(group, 4); });
}

// A rank that skipped an operation without refusing it still gets the mismatch error.
TEST(RefusedOperations, AreNotAllThatAreLeftOut) {
  RankOptions options;
  options.islands = layout("AB");
  Ranks ranks(options);
  EXPECT_EQ(ranks.group(0).commit(), 0u);
  const auto begin = Clock::now();
  const auto errors = ranks.run([](Group& group) {
    std::vector<float> data(10, 1.0f);
    group.run(all_reduce(data));
  });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (const auto& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #0"), HasSubstr(" met all_reduce #")));
}

class RefusedMessage : public ::testing::TestWithParam<std::size_t> {};

// The second of three messages is refused at one end: the others arrive, in order.
// Proves C-8.
TEST_P(RefusedMessage, IsTheOnlyOneThatFails) {
  for (const int refusing : {0, 1}) {
    RankOptions options;
    options.islands = layout("AB");
    Ranks ranks(options);
    ranks.run_ok([&](Group& group) {
      std::vector<std::vector<std::byte>> data(3, std::vector<std::byte>(GetParam(), std::byte(group.rank())));
      std::vector<std::promise<void>> over(3);
      for (std::size_t i = 0; i < 3; ++i) {
        if (group.rank() == 0) data[i].assign(GetParam(), std::byte(i + 7));
        const auto done = [&over, i](std::exception_ptr error) {
          error ? over[i].set_exception(error) : over[i].set_value();
        };
        if (i == 1 && group.rank() == refusing) {
          refusing == 0 ? group.refuse_send(1, 5, "a bad tensor") : group.refuse_receive(0, 5, "a bad tensor");
          done(nullptr);
        } else if (group.rank() == 0) {
          group.send(1, 5, DataType::kUInt8, data[i], {}, done);
        } else {
          group.receive(0, 5, DataType::kUInt8, data[i], {}, [done](std::exception_ptr error, int) { done(error); });
        }
      }
      const bool eager = GetParam() < 100;  // and then the sender does not wait for the receiver
      for (std::size_t i = 0; i < 3; ++i) {
        auto result = over[i].get_future();
        ASSERT_EQ(result.wait_for(kAtOnce), std::future_status::ready) << i;
        if (i != 1 || group.rank() == refusing || (eager && refusing == 1)) {
          EXPECT_NO_THROW(result.get()) << "message " << i << " on rank " << group.rank();
          continue;
        }
        const Error error = error_of([&] { result.get(); });
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(refusing) + " refused to "));
        EXPECT_THAT(error.what(), HasSubstr("a bad tensor"));
      }
      for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
        EXPECT_EQ(data[i], std::vector<std::byte>(GetParam(), std::byte(i + 7))) << i;
      }
      group.barrier();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RefusedMessage, ::testing::Values(0, 1, 100000, 4000000));

}  // namespace
}  // namespace atl::test
