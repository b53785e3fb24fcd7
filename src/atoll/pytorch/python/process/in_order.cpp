// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/in_order.h"

#include <pthread.h>

#include <chrono>
#include <utility>
#include <vector>

namespace atl::pytorch {
namespace {

constexpr std::chrono::microseconds kReadyPollInterval{30};

}  // namespace

void InOrder::post(const Line& line, std::function<bool()> ready, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      if (!thread_.joinable()) {  // first, because it may throw
        thread_ = std::thread([this] {
          pthread_setname_np(pthread_self(), name_);
          if (prepare_ != nullptr) prepare_();
          serve();
        });
      }
      lines_[line].push_back({std::move(ready), std::move(task)});
      task = nullptr;
      changed_.notify_one();
    }
  }
  if (task) task();
}

bool InOrder::is_idle(const Line& line) const {
  const std::lock_guard lock(mutex_);
  return lines_.count(line) == 0;
}

void InOrder::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
    changed_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

// Tasks are polled, run and destroyed without the mutex: post() does not move the front of a line.
void InOrder::serve() {
  using Front = std::pair<decltype(lines_)::iterator, Task*>;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    std::vector<Front> fronts;
    for (auto line = lines_.begin(); line != lines_.end(); ++line) fronts.emplace_back(line, &line->second.front());
    const bool at_once = stopping_;
    lock.unlock();
    std::vector<Front> done;
    for (const Front& front : fronts) {
      Task& task = *front.second;
      if (!at_once && !task.ready()) continue;
      task.run();
      task = {};
      done.push_back(front);
    }
    if (done.empty()) std::this_thread::sleep_for(kReadyPollInterval);
    lock.lock();
    for (const auto& [line, task] : done) {
      line->second.pop_front();
      if (line->second.empty()) lines_.erase(line);
    }
  }
}

}  // namespace atl::pytorch
