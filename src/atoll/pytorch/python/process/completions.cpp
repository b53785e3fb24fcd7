// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/completions.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/core/log.h"

namespace atl::pytorch {
namespace {

// A task that waits this long while every thread is busy gets a thread of its own.
constexpr auto kPatience = std::chrono::milliseconds(2);

void run_and_log(const std::function<void()>& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("a completion callback threw: ") + error.what());
  } catch (...) {
    log(LogLevel::kError, "a completion callback threw something that is not a std::exception");
  }
}

}  // namespace

// Runners take tasks at once. One helper watches: if a task keeps waiting, the helper becomes a runner. If more tasks
// are waiting, it starts the next helper first; otherwise the next post() that finds no idle runner does.
struct Completions::State : std::enable_shared_from_this<Completions::State> {
  void (*prepare)() = nullptr;
  std::mutex mutex;
  std::condition_variable runners_wake;
  std::condition_variable helper_wakes;
  std::deque<std::function<void()>> tasks;
  std::vector<std::thread> threads;
  std::size_t idle_runners = 0;
  bool has_runner = false;
  bool has_helper = false;
  bool stopping = false;

  // Called with the lock held. Returns whether the system could start a thread.
  bool start(void (State::*role)()) {
    try {
      threads.emplace_back([self = shared_from_this(), role] {
        pthread_setname_np(pthread_self(), "atoll-done");
        if (self->prepare != nullptr) self->prepare();
        (self.get()->*role)();
      });
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  // Called with the lock held. Ensures that a thread will take one more task; returns false if there is none.
  bool make_room() {
    if (idle_runners > tasks.size()) return true;
    if (!has_runner) {
      has_runner = start(&State::run);
    } else if (!has_helper) {
      has_helper = start(&State::help);
    }
    return has_runner;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle_runners;
      runners_wake.wait(lock, [&] { return stopping || !tasks.empty(); });
      --idle_runners;
      if (tasks.empty()) return;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      run_and_log(task);
      task = nullptr;
      lock.lock();
    }
  }

  // Works while stopping too, because the remaining tasks may wait for one another.
  void help() {
    {
      std::unique_lock lock(mutex);
      do {
        helper_wakes.wait(lock, [&] { return stopping || !tasks.empty(); });
        if (tasks.empty()) return;
      } while (helper_wakes.wait_for(lock, kPatience, [&] { return tasks.empty(); }));
      has_helper = tasks.size() > 1 && start(&State::help);
    }
    run();
  }
};

Completions::Completions(void (*prepare)()) : state_(std::make_shared<State>()) { state_->prepare = prepare; }

Completions::~Completions() { stop(); }

void Completions::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->runners_wake.notify_all();
  state_->helper_wakes.notify_all();
  while (true) {  // helpers may still start others
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(state_->mutex);
      threads.swap(state_->threads);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }
}

void Completions::post(std::function<void()> task, bool urgent) {
  {
    const std::lock_guard lock(state_->mutex);
    auto& tasks = state_->tasks;
    if (!state_->stopping && state_->make_room()) {
      tasks.insert(urgent ? tasks.begin() : tasks.end(), std::move(task));
      task = nullptr;
      state_->runners_wake.notify_one();
      if (state_->idle_runners < tasks.size()) state_->helper_wakes.notify_one();
    }
  }
  if (task) run_and_log(task);
}

}  // namespace atl::pytorch
