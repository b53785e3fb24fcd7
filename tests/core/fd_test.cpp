// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace atl {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

std::pair<Fd, Fd> connected() {
  std::array<int, 2> sockets{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  return {Fd(sockets[0]), Fd(sockets[1])};
}

/// Runs `body` in a forked child; its result is the exit status.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Fd, ClosesItsDescriptorOnce) {
  auto [a, b] = connected();
  const int number = a.get();
  Fd moved = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved.get(), number);
  moved.reset();
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(moved);
}

TEST(Fd, AssignmentClosesTheOldDescriptor) {
  auto [a, b] = connected();
  const int first = a.get();
  const int second = b.get();
  a = std::move(b);
  EXPECT_FALSE(is_open(first));
  EXPECT_TRUE(is_open(second));
  EXPECT_EQ(a.get(), second);
}

TEST(Fd, ForkedChildHasNoneOfThem) {
  auto [a, b] = connected();
  auto [c, d] = connected();
  const int released = d.release();
  const std::array<int, 3> closed{a.get(), b.get(), c.get()};
  EXPECT_EQ(in_child([&] {
              for (const int fd : closed) {
                if (is_open(fd)) return 1;
              }
              return is_open(released) ? 0 : 2;
            }),
            0);
  for (const int fd : closed) EXPECT_TRUE(is_open(fd));
  ::close(released);
}

TEST(Fd, InheritedObjectDoesNotCloseTheChildsOwnDescriptor) {
  auto [a, b] = connected();
  const std::uint32_t depth = fork_depth();
  EXPECT_EQ(in_child([&inherited = a, depth] {
              if (fork_depth() != depth + 1) return 1;
              const int number = inherited.get();
              if (::dup2(STDIN_FILENO, number) != number) return 2;
              const Fd own(number);
              inherited.reset();
              return is_open(own.get()) ? 0 : 3;
            }),
            0);
}

TEST(Fd, GrandchildClosesWhatTheChildOpened) {
  EXPECT_EQ(in_child([] {
              Fd own(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              return in_child([&] { return is_open(own.get()) ? 1 : 0; });
            }),
            0);
}

TEST(Fd, EndOfFileIsSeenWhileAForkedChildLives) {
  auto [near, far] = connected();
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe_ends[1]);
    char byte = 0;
    ::_exit(::read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);  // lives until the parent closes its end
  }
  ::close(pipe_ends[0]);
  // The child runs the handler before anything else, but may not have been scheduled yet: wait for the end of file.
  far.reset();
  pollfd ready{near.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(::read(near.get(), &byte, 1), 0);
  ::close(pipe_ends[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Fd, RegistryStandsManyThreads) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) Fd one(::dup(0)), two(::dup(0));
    });
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(in_child([] { return 0; }), 0);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace atl
