// SPDX-License-Identifier: Apache-2.0
// The steps of an island's library run in one order on all its ranks, and none before all ranks are ready for it.
#include "atoll/collectives/group/island_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <random>

#include "tests/support/error_of.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Kind = LibraryStep::Kind;

LibraryStep message(int sender, int receiver, std::uint64_t number) {
  return {Kind::kMessage, sender, receiver, number};
}

/// The steps that one rank was granted, in order.
class Granted {
 public:
  void request(Group& group, const LibraryStep& step, Deadline deadline = Deadline::never()) {
    group.request_step({step,
                        [this, step](const std::exception_ptr& error) {
                          const std::lock_guard lock(mutex_);
                          error ? errors_.push_back(error) : steps_.push_back(step);
                          changed_.notify_all();
                        },
                        deadline, "the other end is missing"});
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 20s, [&] { return steps_.size() + errors_.size() >= count; }))
        << steps_.size() << " of " << count;
  }
  std::vector<LibraryStep> steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }
  std::vector<std::exception_ptr> errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LibraryStep> steps_;
  std::vector<std::exception_ptr> errors_;
};

bool takes_part(const LibraryStep& step, int rank) {
  return step.kind != Kind::kMessage || step.sender == rank || step.receiver == rank;
}

std::vector<LibraryStep> shared_with(const std::vector<LibraryStep>& steps, int rank) {
  std::vector<LibraryStep> shared;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(shared),
               [&](const LibraryStep& step) { return takes_part(step, rank); });
  return shared;
}

// Interleaves a rank's steps at random, keeping each kind in order.
std::vector<LibraryStep> mixed(const std::vector<LibraryStep>& all, int rank, unsigned seed) {
  std::vector<std::vector<LibraryStep>> lines;
  for (const LibraryStep& step : all) {
    if (!takes_part(step, rank)) continue;
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& each) {
      const LibraryStep& first = each.front();
      return first.kind == step.kind && first.sender == step.sender && first.receiver == step.receiver;
    });
    line == lines.end() ? lines.push_back({step}) : line->push_back(step);
  }
  std::mt19937 random(seed);
  std::vector<LibraryStep> order;
  while (!lines.empty()) {
    auto& line = lines[random() % lines.size()];
    order.push_back(line.front());
    line.erase(line.begin());
    std::erase_if(lines, [](const auto& each) { return each.empty(); });
  }
  return order;
}

class OneOrder : public ::testing::TestWithParam<std::pair<const char*, transport::TransportChoice>> {};

// Proves D-4.
TEST_P(OneOrder, OnAllRanksOfAnIsland) {
  RankOptions options;
  options.islands = layout(GetParam().first);
  options.transport = GetParam().second;
  std::vector<int> island;
  for (int rank = 0; rank < static_cast<int>(options.islands.size()); ++rank) {
    if (options.islands[static_cast<std::size_t>(rank)] == options.islands[0]) island.push_back(rank);
  }
  std::vector<LibraryStep> all;
  for (std::uint64_t number = 0; number < 60; ++number) {
    all.push_back({Kind::kIn, -1, -1, number});
    all.push_back({Kind::kOut, -1, -1, number});
    all.push_back({Kind::kOutAfterIn, -1, -1, number});
    for (const int sender : island)
      all.push_back(message(sender, island[(number + 1) % island.size()], number / island.size()));
  }
  std::erase_if(all,
                [](const LibraryStep& step) { return step.kind == Kind::kMessage && step.sender == step.receiver; });
  std::vector<Granted> granted(options.islands.size());
  Ranks ranks(options);
  ranks.run_ok([&](Group& group) {
    if (group.topology().island_of[static_cast<std::size_t>(group.rank())] != 0) return group.barrier();
    Granted& mine = granted[static_cast<std::size_t>(group.rank())];
    group.open_island_order();
    const auto order = mixed(all, group.rank(), 7u + static_cast<unsigned>(group.rank()));
    for (const LibraryStep& step : order) mine.request(group, step);
    mine.wait_for(order.size());
    group.barrier();
  });
  for (const int a : island) {
    const auto mine = granted[static_cast<std::size_t>(a)].steps();
    for (const int b : island) {
      EXPECT_EQ(shared_with(mine, b), shared_with(granted[static_cast<std::size_t>(b)].steps(), a))
          << a << " and " << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, OneOrder,
                         ::testing::Values(std::pair{"AA", transport::TransportChoice::kShm},
                                           std::pair{"AAB", transport::TransportChoice::kTcp},
                                           std::pair{"ABABA", transport::TransportChoice::kShm},
                                           std::pair{"AAAA", transport::TransportChoice::kTcp}),
                         [](const auto& at) { return std::string(at.param.first); });

Ranks three_of_an_island() {
  RankOptions options;
  options.islands = layout("AAA");
  return Ranks(options);
}

// Proves D-4.
TEST(IslandOrder, NoStepComesBeforeAllAreReadyForIt) {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    Granted granted;
    group.open_island_order();
    if (group.rank() != 1) granted.request(group, {Kind::kIn, -1, -1, 0});
    group.barrier();
    // A later step that needs fewer ranks is not held up.
    if (group.rank() != 1) granted.request(group, message(0, 2, 0));
    if (group.rank() != 1) granted.wait_for(1);
    group.barrier();
    if (group.rank() == 1) granted.request(group, {Kind::kIn, -1, -1, 0});
    granted.wait_for(group.rank() == 1 ? 1 : 2);
    const LibraryStep in{Kind::kIn, -1, -1, 0};
    const auto expected = group.rank() == 1 ? std::vector{in} : std::vector{message(0, 2, 0), in};
    EXPECT_EQ(granted.steps(), expected);
    group.barrier();
  });
}

// An operation that one rank has refused is requested by the others only.
TEST(IslandOrder, WhatSomeNeverRequestHoldsUpNothing) {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    Granted granted;
    group.open_island_order();
    for (std::uint64_t number = 0; number < 10; ++number) {
      if (number % 3 != 1 || group.rank() != 2) granted.request(group, {Kind::kIn, -1, -1, number});
    }
    granted.wait_for(group.rank() == 2 ? 7 : 10);
    EXPECT_EQ(granted.errors().size(), group.rank() == 2 ? 0u : 3u);
    group.barrier();
    std::vector<std::uint64_t> numbers;
    for (const LibraryStep& step : granted.steps()) numbers.push_back(step.number);
    EXPECT_EQ(numbers, (std::vector<std::uint64_t>{0, 2, 3, 5, 6, 8, 9}));
  });
}

// Later steps wait on a rank that is not ready for it yet, and only there.
TEST(IslandOrder, AnOutAfterInIsGrantedByTheLeaderAlone) {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    const LibraryStep out{Kind::kOutAfterIn, -1, -1, 3};
    const LibraryStep next{Kind::kIn, -1, -1, 4};
    Granted granted;
    group.open_island_order();
    if (group.rank() == 0) {
      granted.request(group, out);
      granted.wait_for(1);
    }
    group.barrier();
    granted.request(group, next);
    if (group.rank() == 0) granted.wait_for(2);
    group.barrier();
    EXPECT_EQ(granted.steps().size(), group.rank() == 0 ? 2u : 0u);
    if (group.rank() == 1) granted.request(group, out);
    if (group.rank() == 2) group.give_up_step(out);
    granted.wait_for(group.rank() == 2 ? 1 : 2);
    EXPECT_EQ(granted.steps(), group.rank() == 2 ? std::vector{next} : (std::vector{out, next}));
    EXPECT_EQ(granted.errors().size(), 0u);
    group.barrier();
  });
}

TEST(IslandOrder, WhatWasGivenUpBeforeItsGrantHoldsUpNothing) {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    Granted granted;
    group.open_island_order();
    if (group.rank() == 2) {
      for (std::uint64_t number = 0; number < 2000; number += 2)
        group.give_up_step({Kind::kOutAfterIn, -1, -1, number});
    }
    group.barrier();
    for (std::uint64_t number = 0; number < 2000; ++number) {
      if (group.rank() != 2 || number % 2 == 1) granted.request(group, {Kind::kOutAfterIn, -1, -1, number});
    }
    granted.wait_for(group.rank() == 2 ? 1000 : 2000);
    EXPECT_EQ(granted.steps().back(), (LibraryStep{Kind::kOutAfterIn, -1, -1, 1999}));
    EXPECT_EQ(granted.errors().size(), 0u);
    group.barrier();
  });
}

void continue_without_the_leader() {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    Granted granted;
    group.open_island_order();
    if (group.rank() == 2) granted.request(group, message(1, 2, 0));
    group.barrier();
    if (group.rank() == 0) return group.shutdown();
    for (std::uint64_t number = group.rank() == 2 ? 1 : 0; number < 5; ++number) {
      granted.request(group, message(1, 2, number));
    }
    granted.wait_for(5);
    EXPECT_EQ(granted.steps().size(), 5u);
    EXPECT_EQ(granted.steps().back(), message(1, 2, 4));
  });
}

// Whether the leader has granted some steps, and whether the link to the next leader is open by then, differs from run
// to run.
TEST(IslandOrder, MessagesGoOnWhenTheLeaderHasLeft) {
  for (int times = 0; times < 40 && !HasFailure(); ++times) continue_without_the_leader();
}

TEST(IslandOrder, AStepWhoseTimeIsOverEndsTheGroup) {
  Ranks ranks = three_of_an_island();
  ranks.run([](Group& group) {
    Granted granted;
    if (group.rank() == 1) granted.request(group, message(1, 0, 0), Deadline::after(300ms));
    if (group.rank() == 1) granted.wait_for(1);
    const Error error = error_of([&] { group.barrier(); });
    EXPECT_THAT(error.what(), HasSubstr("the other end is missing"));
    if (group.rank() != 1) return;
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(granted.errors().size(), 1u);
  });
}

TEST(IslandOrder, FailsWithItsGroup) {
  Ranks ranks = three_of_an_island();
  ranks.run([](Group& group) {
    Granted granted;
    granted.request(group, {Kind::kIn, -1, -1, static_cast<std::uint64_t>(group.rank())});
    if (group.rank() == 2) group.abort("enough");
    granted.wait_for(1);
    granted.request(group, {Kind::kOut, -1, -1, 0});  // later requests fail too
    granted.wait_for(2);
    for (const auto& error : granted.errors()) {
      EXPECT_THAT(error_of([&] { std::rethrow_exception(error); }).what(), HasSubstr("enough"));
    }
    EXPECT_EQ(granted.errors().size(), 2u);
  });
}

// The receiver refuses it before the sender has started: only the sender's end fails.
TEST(IslandOrder, ARefusedMessageThatHasNotBegunLeavesTheGroup) {
  Ranks ranks = three_of_an_island();
  ranks.run_ok([](Group& group) {
    Granted granted;
    group.open_island_order();
    if (group.rank() == 0) {
      granted.request(group, message(0, 1, group.commit_message(1, true)));
      group.barrier();
      granted.wait_for(1);
      ASSERT_EQ(granted.errors().size(), 1u);
      const Error error = error_of([&] { std::rethrow_exception(granted.errors()[0]); });
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 refused to receive it"), HasSubstr("too small")));
      granted.request(group, message(0, 1, group.commit_message(1, true)));
      granted.wait_for(2);
    } else {
      group.barrier();
      if (group.rank() == 1) {
        group.refuse_committed_message(0, false, "too small");
        granted.request(group, message(0, 1, group.commit_message(0, false)));
        granted.wait_for(1);
      }
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace atl::test
