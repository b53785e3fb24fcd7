// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"

namespace atl {

namespace {

constexpr std::uint64_t kWakeToken = 0;

Fd checked(int fd, const char* what) {
  if (fd < 0) throw unavailable(std::string("cannot make ") + what + " for a loop thread", errno);
  return Fd(fd);
}

}  // namespace

struct Loop::State {
  struct Watch {
    std::uint64_t token;
    FdHandler handler;
  };
  struct Timer {
    std::chrono::milliseconds period;  // zero: once
    TimerId id;
    std::shared_ptr<Task> task;
  };
  using Timers = std::multimap<Clock::time_point, Timer>;

  Fd epoll;
  Fd wake;
  const std::uint32_t process = fork_depth();
  std::thread thread;
  std::atomic<std::thread::id> thread_id{};

  std::mutex mutex;
  std::vector<Task> posted;   // guarded by mutex
  bool wake_pending = false;  // guarded by mutex
  bool stopping = false;      // guarded by mutex

  // On the loop thread only.
  std::unordered_map<int, std::shared_ptr<Watch>> watches;
  std::unordered_map<std::uint64_t, std::weak_ptr<Watch>> tokens;
  std::uint64_t next_token = kWakeToken + 1;
  Timers timers;
  std::unordered_map<TimerId, Timers::iterator> timer_by_id;
  TimerId next_timer = 1;

  /// As epoll_ctl, whose result it returns.
  int control(int operation, int fd, std::uint32_t events, std::uint64_t token) const noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = token;
    return ::epoll_ctl(epoll.get(), operation, fd, &event);
  }

  void signal_wake() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
  }

  template <class Function>
  static void guarded(Function&& function) noexcept {
    try {
      function();
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("a loop handler threw: ") + error.what());
    }
  }

  /// Returns true when the loop has to end: it is stopping and nothing is left to run.
  bool run_posted() {
    std::vector<Task> batch;
    {
      const std::lock_guard lock(mutex);
      wake_pending = false;
      batch.swap(posted);
      if (batch.empty()) return stopping;
    }
    for (auto& task : batch) guarded(task);
    return false;
  }

  void run_timers() {
    const auto now = Clock::now();
    while (!timers.empty() && timers.begin()->first <= now) {
      auto node = timers.extract(timers.begin());
      const auto task = node.mapped().task;
      const TimerId id = node.mapped().id;
      if (node.mapped().period.count() > 0) {
        node.key() = now + node.mapped().period;
        timer_by_id[id] = timers.insert(std::move(node));
      } else {
        timer_by_id.erase(id);
      }
      guarded(*task);
    }
  }

  int wait_limit_ms() {
    {
      const std::lock_guard lock(mutex);
      if (!posted.empty() || stopping) return 0;
    }
    if (timers.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers.begin()->first - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }

  void dispatch(const epoll_event& event) {
    const std::uint64_t token = event.data.u64;  // a copy, as nothing may refer to a field of a packed structure
    if (token == kWakeToken) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake.get(), &count, sizeof count);
      return;
    }
    const auto found = tokens.find(token);
    if (found == tokens.end()) return;  // removed by an earlier handler of this batch
    if (const auto watch = found->second.lock()) guarded([&] { watch->handler(event.events); });
  }

  void run() {
    std::array<epoll_event, 64> events;
    while (!run_posted()) {
      const int count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), wait_limit_ms());
      for (int i = 0; i < count; ++i) dispatch(events[static_cast<std::size_t>(i)]);
      run_timers();
    }
    // Handlers may own objects that use the loop, so they are destroyed on its thread.
    watches.clear();
    timers.clear();
  }
};

Loop::Loop(const std::string& name) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.epoll = checked(::epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor");
  state.wake = checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "an eventfd");
  if (state.control(EPOLL_CTL_ADD, state.wake.get(), EPOLLIN, kWakeToken) != 0) {
    throw Error(ErrorKind::kUnavailable, with_errno("cannot watch an eventfd", errno));
  }
  // Signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    state.thread = std::thread([&state, name] {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      state.thread_id = std::this_thread::get_id();
      state.run();
    });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorKind::kUnavailable, std::string("cannot start the loop thread: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Loop::~Loop() {
  if (fork_depth() != state_->process) {
    state_->thread.detach();  // a forked child has no such thread to join
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->signal_wake();
  state_->thread.join();
}

bool Loop::post(Task task) {
  State& state = *state_;
  if (fork_depth() != state.process) return false;  // an inherited loop has no thread
  bool wake = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.stopping) return false;
    state.posted.push_back(std::move(task));
    wake = !std::exchange(state.wake_pending, true);
  }
  // The loop checks its tasks before it waits, so its own thread needs no wake-up.
  if (wake && !on_loop_thread()) state.signal_wake();
  return true;
}

void Loop::run_and_wait(const Task& task) {
  if (on_loop_thread()) {
    task();
    return;
  }
  // Shared, because the waiter may leave while the loop thread is still at the end of it.
  const auto work = std::make_shared<std::packaged_task<void()>>(task);
  auto finished = work->get_future();
  if (!post([work] { (*work)(); })) throw Error(ErrorKind::kAborted, "the loop thread has stopped");
  finished.get();
}

bool Loop::on_loop_thread() const noexcept { return std::this_thread::get_id() == state_->thread_id.load(); }

void Loop::add_fd_on_loop(int fd, std::uint32_t epoll_events, FdHandler handler) {
  State& state = *state_;
  const auto watch = std::make_shared<State::Watch>(State::Watch{state.next_token++, std::move(handler)});
  if (state.control(EPOLL_CTL_ADD, fd, epoll_events, watch->token) != 0) {
    throw Error(ErrorKind::kUnavailable, with_errno("cannot watch descriptor " + std::to_string(fd), errno));
  }
  state.watches[fd] = watch;
  state.tokens[watch->token] = watch;
}

void Loop::modify_fd_on_loop(int fd, std::uint32_t epoll_events) {
  const auto found = state_->watches.find(fd);
  if (found != state_->watches.end()) state_->control(EPOLL_CTL_MOD, fd, epoll_events, found->second->token);
}

void Loop::remove_fd_on_loop(int fd) {
  const auto found = state_->watches.find(fd);
  if (found == state_->watches.end()) return;
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  state_->tokens.erase(found->second->token);
  state_->watches.erase(found);
}

Loop::TimerId Loop::add_timer_on_loop(std::chrono::milliseconds delay, bool repeat, Task task) {
  State& state = *state_;
  const TimerId id = state.next_timer++;
  const auto period = repeat ? std::max(delay, std::chrono::milliseconds(1)) : std::chrono::milliseconds(0);
  state.timer_by_id[id] =
      state.timers.emplace(Clock::now() + delay, State::Timer{period, id, std::make_shared<Task>(std::move(task))});
  return id;
}

void Loop::cancel_timer_on_loop(TimerId id) {
  const auto found = state_->timer_by_id.find(id);
  if (found == state_->timer_by_id.end()) return;
  state_->timers.erase(found->second);
  state_->timer_by_id.erase(found);
}

}  // namespace atl
