// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/completions.h"

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

// Runners take tasks at once. One helper watches: when a task is left waiting, the helper becomes a runner and the next post
// that finds no idle runner starts a new helper.
struct Completions::State : std::enable_shared_from_this<Completions::State> {
  std::mutex mutex;
  std::condition_variable runners_wake;
  std::condition_variable helper_wakes;
  std::deque<std::function<void()>> tasks;
  std::vector<std::thread> threads;
  std::size_t idle_runners = 0;
  bool has_runner = false;
  bool has_helper = false;
  bool stopping = false;

  void start(void (State::*role)()) {
    threads.emplace_back([self = shared_from_this(), role] {
      pthread_setname_np(pthread_self(), "atoll-done");
      (self.get()->*role)();
    });
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

  void help() {
    {
      std::unique_lock lock(mutex);
      const auto nothing_to_do = [&] { return stopping || tasks.empty(); };
      do {
        helper_wakes.wait(lock, [&] { return stopping || !tasks.empty(); });
      } while (!stopping && helper_wakes.wait_for(lock, kPatience, nothing_to_do));
      has_helper = false;
    }
    run();
  }
};

Completions::Completions() : state_(std::make_shared<State>()) {}

Completions::~Completions() { stop(); }

void Completions::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
  }
  state_->runners_wake.notify_all();
  state_->helper_wakes.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void Completions::post(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->stopping) {
      state_->tasks.push_back(std::move(task));
      task = nullptr;
      if (state_->idle_runners >= state_->tasks.size()) {
        state_->runners_wake.notify_one();
      } else if (!state_->has_runner) {
        state_->has_runner = true;
        state_->start(&State::run);
      } else if (!state_->has_helper) {
        state_->has_helper = true;
        state_->start(&State::help);
      } else {
        state_->runners_wake.notify_one();
        state_->helper_wakes.notify_one();
      }
    }
  }
  if (task) run_and_log(task);
}

}  // namespace atl::pytorch
