// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/doorbell.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

// A lost ring shows as a wait that ends at its limit: far longer than any normal wait, and counted.
constexpr nanoseconds kLost = 5s;

struct Game {
  std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint32_t> lost{0};
};

/// Two players alternate `rounds` times; each sleeps on its own bell until it is its turn.
void play(Game& game, std::uint32_t player, std::uint32_t rounds, BellWords& own, BellWords& other, nanoseconds spin) {
  Sleeper sleeper(own, spin);
  for (std::uint32_t round = player; round < 2 * rounds; round += 2) {
    const auto started = std::chrono::steady_clock::now();
    while (game.turn.load(std::memory_order_acquire) != round) sleeper.wait_briefly(kLost);
    if (std::chrono::steady_clock::now() - started >= kLost) game.lost.fetch_add(1);
    sleeper.reset();
    game.turn.store(round + 1, std::memory_order_release);
    ring(other);
  }
}

class DoorbellSpin : public testing::TestWithParam<nanoseconds> {};
INSTANTIATE_TEST_SUITE_P(Budgets, DoorbellSpin, testing::Values(0ns, 200ns, 2us, 20us),
                         [](const auto& budget) { return std::to_string(budget.param.count()) + "ns"; });

TEST_P(DoorbellSpin, NoRingIsLostBetweenThreads) {
  Doorbell bells;
  Game game;
  BellWords& a = bells.bell(Bell::kCollective);
  BellWords& b = bells.bell(Bell::kPointToPoint);
  std::thread second([&] { play(game, 1, 20'000, b, a, GetParam()); });
  play(game, 0, 20'000, a, b, GetParam());
  second.join();
  EXPECT_EQ(game.lost.load(), 0U);
  EXPECT_EQ(a.sleepers.load(), 0U);
  EXPECT_EQ(b.sleepers.load(), 0U);
}

TEST_P(DoorbellSpin, NoRingIsLostBetweenProcesses) {
  void* const shared = ::mmap(nullptr, sizeof(Game), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Game& game = *new (shared) Game;
  // Each process waits on bells of its own and rings the other's through the passed memory.
  const Fd first = make_sealed_memfd("first", sizeof(DoorbellPage));
  const Fd second = make_sealed_memfd("second", sizeof(DoorbellPage));
  RemoteDoorbell a(first);
  RemoteDoorbell b(second);
  // A child does not inherit a doorbell's mapping, nor its descriptors unless they are copied.
  const int first_copy = ::dup(first.get());
  const int second_copy = ::dup(second.get());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RemoteDoorbell far_a{Fd(first_copy)};
    const RemoteDoorbell far_b{Fd(second_copy)};
    play(game, 1, 20'000, far_b.bell(Bell::kCollective), far_a.bell(Bell::kCollective), GetParam());
    ::_exit(0);
  }
  play(game, 0, 20'000, a.bell(Bell::kCollective), b.bell(Bell::kCollective), GetParam());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(game.lost.load(), 0U);
  ::close(first_copy);
  ::close(second_copy);
  ::munmap(shared, sizeof(Game));
}

TEST(Doorbell, WakesEverySleeper) {
  Doorbell bells;
  BellWords& bell = bells.bell(Bell::kPointToPoint);
  std::atomic<bool> work{false};
  std::atomic<int> in_time{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto started = std::chrono::steady_clock::now();
      Sleeper sleeper(bell, 0ns);
      while (!work.load(std::memory_order_acquire)) sleeper.wait_briefly(kLost);
      if (std::chrono::steady_clock::now() - started < kLost) in_time.fetch_add(1);
    });
  }
  while (bell.sleepers.load() != 8) std::this_thread::yield();
  work.store(true, std::memory_order_release);
  bells.ring_all();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(in_time.load(), 8);
  EXPECT_EQ(bell.sleepers.load(), 0U);
}

TEST(Doorbell, RingWithoutSleepersChangesNothing) {
  Doorbell bells;
  bells.ring_all();
  EXPECT_EQ(bells.bell(Bell::kCollective).value.load(), 0U);
}

TEST(Doorbell, BellsAreSeparate) {
  Doorbell bells;
  Sleeper sleeper(bells.bell(Bell::kCollective), 0ns);
  sleeper.wait_briefly(1s);  // announces
  ring(bells.bell(Bell::kPointToPoint));
  EXPECT_EQ(bells.bell(Bell::kCollective).value.load(), 0U);
  ring(bells.bell(Bell::kCollective));
  EXPECT_EQ(bells.bell(Bell::kCollective).value.load(), 1U);
}

TEST(Sleeper, GivesUpAtTheLimit) {
  Doorbell bells;
  Sleeper sleeper(bells.bell(Bell::kCollective), 0ns);
  sleeper.wait_briefly(30ms);
  const auto started = std::chrono::steady_clock::now();
  sleeper.wait_briefly(30ms);
  const auto waited = std::chrono::steady_clock::now() - started;
  EXPECT_GE(waited, 29ms);
  EXPECT_LT(waited, 3s);
}

TEST(Sleeper, DoesNotSleepThroughARingBetweenLookAndWait) {
  Doorbell bells;
  BellWords& bell = bells.bell(Bell::kCollective);
  Sleeper sleeper(bell, 0ns);
  sleeper.wait_briefly(kLost);  // announces; the caller looks for work, finds none ...
  ring(bell);                   // ... and only now the work appears
  const auto started = std::chrono::steady_clock::now();
  sleeper.wait_briefly(kLost);
  EXPECT_LT(std::chrono::steady_clock::now() - started, kLost);
}

// One side announces itself and looks for work at the very moment at which the other publishes it and looks for
// sleepers: at least one of them must see the other.
TEST(Sleeper, AnnouncementAndRingNeverMissEachOther) {
  Doorbell bells;
  BellWords& bell = bells.bell(Bell::kCollective);
  constexpr std::uint32_t kRounds = 300'000;
  alignas(64) std::atomic<std::uint32_t> start{0};
  alignas(64) std::atomic<std::uint32_t> work{0};
  alignas(64) std::atomic<std::uint32_t> done{0};
  const auto wait_for = [](const std::atomic<std::uint32_t>& word, std::uint32_t value) {
    for (int looks = 0; word.load(std::memory_order_acquire) != value; ++looks) {
      if (looks > 1000) std::this_thread::yield();
    }
  };
  std::thread ringer([&] {
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      wait_for(start, round);
      work.store(round, std::memory_order_release);
      ring(bell);
      done.store(round, std::memory_order_release);
    }
  });
  std::uint32_t missed = 0;
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    Sleeper sleeper(bell, 0ns);
    const std::uint32_t before = bell.value.load();
    start.store(round, std::memory_order_release);
    for (std::uint32_t delay = round % 509; delay > 0; --delay) static_cast<void>(start.load());
    sleeper.wait_briefly(0ns);
    const bool saw_work = work.load(std::memory_order_acquire) == round;
    wait_for(done, round);
    missed += !saw_work && bell.value.load() == before ? 1 : 0;
  }
  ringer.join();
  EXPECT_EQ(missed, 0U);
}

TEST(Sleeper, SpinsForItsBudgetOnly) {
  Doorbell bells;
  BellWords& bell = bells.bell(Bell::kCollective);
  Sleeper sleeper(bell, 20ms);
  const auto started = std::chrono::steady_clock::now();
  sleeper.wait_briefly(1s);
  EXPECT_EQ(bell.sleepers.load(), 0U);
  while (bell.sleepers.load() == 0) sleeper.wait_briefly(1s);
  EXPECT_GE(std::chrono::steady_clock::now() - started, 20ms);
  sleeper.reset();
  EXPECT_EQ(bell.sleepers.load(), 0U);
  sleeper.wait_briefly(1s);  // the budget starts again
  EXPECT_EQ(bell.sleepers.load(), 0U);
}

TEST(RemoteDoorbell, RefusesMemoryThatCouldShrink) {
  const Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), sizeof(DoorbellPage)), 0);
  try {
    const RemoteDoorbell remote(unsealed);
    FAIL() << "unsealed memory was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
  }
}

TEST(RemoteDoorbell, RefusesMemoryOfAnotherSize) {
  const Fd small = make_sealed_memfd("small", 8);
  EXPECT_THROW(const RemoteDoorbell remote(small), Error);
}

TEST(RemoteDoorbell, SeesTheBeat) {
  Doorbell bells;
  const RemoteDoorbell remote(bells.memory());
  const std::uint64_t before = remote.beats();
  bells.beat();
  EXPECT_EQ(remote.beats(), before + 1);
}

TEST(SpinBudget, LetsAllRanksRunThatShareCores) {
  EXPECT_LT(spin_budget(1), spin_budget(100'000));
  EXPECT_LE(spin_budget(100'000), 1ms);
}

TEST(Sleeper, SpinsLessWhileWaitsOutlastItsBudget) {
  Doorbell bells;
  Sleeper sleeper(bells.bell(Bell::kCollective), 160us);
  for (int i = 0; i < 6; ++i) {
    while (bells.bell(Bell::kCollective).sleepers.load() == 0) sleeper.wait_briefly(1ms);
    sleeper.wait_briefly(1ms);  // sleeps
    sleeper.reset();
  }
  EXPECT_EQ(sleeper.budget(), 10us);
  for (int i = 0; i < 4; ++i) {
    sleeper.wait_briefly(1ms);  // yields
    sleeper.reset();
  }
  EXPECT_EQ(sleeper.budget(), 160us);
}

}  // namespace
}  // namespace atl::transport
