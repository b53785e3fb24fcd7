// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/in_order.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace atl::pytorch {
namespace {

constexpr std::chrono::microseconds kPause{30};

}  // namespace

void InOrder::post(std::function<bool()> ready, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      tasks_.push_back({std::move(ready), std::move(task)});
      task = nullptr;
      changed_.notify_one();
      if (!thread_.joinable()) {
        thread_ = std::thread([this] {
          pthread_setname_np(pthread_self(), "atoll-sends");
          serve();
        });
      }
    }
  }
  if (task) task();
}

bool InOrder::is_idle() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty();
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

void InOrder::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    while (!stopping_ && !task.ready()) {
      lock.unlock();
      std::this_thread::sleep_for(kPause);
      lock.lock();
    }
    lock.unlock();
    task.run();
    task = {};
    lock.lock();
    tasks_.pop_front();
  }
}

}  // namespace atl::pytorch
