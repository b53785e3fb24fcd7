// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "atoll/collectives/group/context_impl.h"
#include "atoll/core/fd.h"

namespace atl::collectives {
namespace {

// A signal handler may touch little else than lock-free atomics and write(2).
constexpr int kSlots = 64;
constexpr int kFree = 0;  // a slot holds its descriptor plus kFirst, so that zero-initialised slots are free
constexpr int kReserved = 1;
constexpr int kFirst = 2;
std::array<std::atomic<int>, kSlots> g_event_fds;
// The process that owns the descriptor: in a child that inherited the table, the number may belong to any other file.
std::array<std::atomic<pid_t>, kSlots> g_processes;
std::array<Fd, kSlots> g_owners;

void on_signal(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  const pid_t process = getpid();
  for (int slot = 0; slot < kSlots; ++slot) {
    const int held = g_event_fds[slot].load(std::memory_order_acquire);
    if (held < kFirst || g_processes[slot].load(std::memory_order_relaxed) != process) continue;
    (void)!write(held - kFirst, &one, sizeof one);
  }
  errno = saved;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction current {};
    if (sigaction(SIGUSR1, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, nullptr);
  });
}

}  // namespace

int watch_dump_signal(Loop& loop, std::function<void()> dump) {
  install_handler();
  for (int slot = 0; slot < kSlots; ++slot) {
    int expected = kFree;
    if (!g_event_fds[slot].compare_exchange_strong(expected, kReserved)) continue;
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
      g_event_fds[slot].store(kFree);
      return -1;
    }
    g_owners[slot] = Fd(fd);
    loop.run_and_wait([&] {
      loop.add_fd_on_loop(fd, EPOLLIN, [fd, dump = std::move(dump)](std::uint32_t) {
        std::uint64_t count = 0;
        if (read(fd, &count, sizeof count) > 0) dump();
      });
    });
    g_processes[slot].store(getpid());
    g_event_fds[slot].store(fd + kFirst);
    return slot;
  }
  return -1;
}

void unwatch_dump_signal(Loop& loop, int slot) {
  if (slot < 0) return;
  const int fd = g_event_fds[slot].exchange(kReserved) - kFirst;
  loop.run_and_wait([&] { loop.remove_fd_on_loop(fd); });
  g_owners[slot].reset();
  g_event_fds[slot].store(kFree);
}

}  // namespace atl::collectives
