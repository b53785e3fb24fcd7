// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/loop.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 20s;

template <class T>
T get(std::future<T> future) {
  if (future.wait_for(kPatience) != std::future_status::ready) throw std::runtime_error("it did not happen");
  return future.get();
}

TEST(Loop, RunsTasksInOrderOnItsOwnNamedThread) {
  Loop loop("a-name-that-is-too-long");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(loop.post([&order, i] { order.push_back(i); }));
  std::array<char, 32> name{};
  loop.run_and_wait([&] {
    EXPECT_TRUE(loop.on_loop_thread());
    pthread_getname_np(pthread_self(), name.data(), name.size());
    loop.run_and_wait([&] { order.push_back(1000); });
  });
  EXPECT_FALSE(loop.on_loop_thread());
  EXPECT_STREQ(name.data(), "a-name-that-is-");
  ASSERT_EQ(order.size(), 1001U);
  for (int i = 0; i <= 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Loop, PassesExceptionsOnAndSurvivesThem) {
  Loop loop("test");
  EXPECT_THROW(loop.run_and_wait([] { throw Error(ErrorKind::kTimeout, "late"); }), Error);
  EXPECT_TRUE(loop.post([] { throw std::runtime_error("no thread waits for this one"); }));
  int runs = 0;
  loop.run_and_wait([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Loop, RunsWhatWasPostedBeforeItEnds) {
  int runs = 0;
  std::atomic<bool> accepted_late{true};
  std::promise<void> go;
  auto gate = go.get_future();
  std::promise<void> blocked;
  {
    Loop loop("test");
    loop.post([&] {
      blocked.set_value();
      get(std::move(gate));
    });
    get(blocked.get_future());
    for (int i = 0; i < 10; ++i) loop.post([&] { ++runs; });
    loop.post([&] {
      while (loop.post([] {})) std::this_thread::yield();  // until the destructor runs
      accepted_late = loop.post([] {});
    });
    go.set_value();
  }
  EXPECT_EQ(runs, 10);
  EXPECT_FALSE(accepted_late);
}

TEST(Loop, TimersFireOnTimeAndCanBeCancelled) {
  std::promise<Clock::time_point> once;
  std::promise<void> thrice;
  std::promise<void> later;
  int repeats = 0;
  bool cancelled_fired = false;
  Loop::TimerId repeating = 0;
  Loop loop("test");
  const auto start = Clock::now();
  loop.run_and_wait([&] {
    const auto doomed = loop.add_timer_on_loop(5ms, false, [&] { cancelled_fired = true; });
    loop.add_timer_on_loop(20ms, false, [&] { once.set_value(Clock::now()); });
    repeating = loop.add_timer_on_loop(10ms, true, [&] {
      if (++repeats != 3) return;
      loop.cancel_timer_on_loop(repeating);  // from its own task
      thrice.set_value();
    });
    loop.cancel_timer_on_loop(doomed);
    loop.cancel_timer_on_loop(123456);
  });
  EXPECT_GE(get(once.get_future()) - start, 20ms);
  get(thrice.get_future());
  EXPECT_GE(Clock::now() - start, 30ms);
  loop.post([&] { loop.add_timer_on_loop(25ms, false, [&] { later.set_value(); }); });
  get(later.get_future());
  loop.run_and_wait([&] { EXPECT_EQ(repeats, 3); });
  EXPECT_FALSE(cancelled_fired);
}

TEST(Loop, TellsOfDescriptorsUntilTheyAreRemoved) {
  const Fd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::promise<std::uint32_t> readable;
  int calls = 0;
  Loop loop("test");
  loop.run_and_wait([&] {
    loop.add_fd_on_loop(event.get(), 0, [&](std::uint32_t events) {
      ++calls;
      loop.remove_fd_on_loop(event.get());  // from its own handler, which continues
      readable.set_value(events);
    });
  });
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(event.get(), &one, sizeof one), 8);
  loop.run_and_wait([&] {
    EXPECT_EQ(calls, 0);
    loop.modify_fd_on_loop(event.get(), EPOLLIN);
  });
  EXPECT_EQ(get(readable.get_future()), EPOLLIN);
  loop.run_and_wait([] {});
  EXPECT_EQ(calls, 1);
}

TEST(Loop, AHandlerMayRemoveAnotherThatIsReadyToo) {
  const Fd first(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  const Fd second(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  int calls = 0;
  std::promise<void> called;
  Loop loop("test");
  loop.run_and_wait([&] {
    const auto handler = [&](std::uint32_t) {
      if (++calls == 1) called.set_value();
      loop.remove_fd_on_loop(first.get());
      loop.remove_fd_on_loop(second.get());
    };
    loop.add_fd_on_loop(first.get(), EPOLLIN, handler);
    loop.add_fd_on_loop(second.get(), EPOLLIN, handler);
  });
  get(called.get_future());
  loop.run_and_wait([] {});
  EXPECT_EQ(calls, 1);
}

TEST(Loop, RefusesADescriptorThatCannotBeWatched) {
  Loop loop("test");
  try {
    loop.run_and_wait([&] { loop.add_fd_on_loop(-1, EPOLLIN, [](std::uint32_t) {}); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
}

TEST(Loop, IsInertInAForkedChild) {
  auto loop = std::make_unique<Loop>("test");
  loop->run_and_wait([] {});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool posted = loop->post([] {});
    loop.reset();  // must not wait for a thread that does not exist here
    ::_exit(posted ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  int runs = 0;
  loop->run_and_wait([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace atl
