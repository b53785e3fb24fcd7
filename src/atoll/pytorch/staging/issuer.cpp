// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/issuer.h"

#include <utility>

namespace atl::pytorch {

void Issuer::push(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void Issuer::run() {
  std::unique_lock lock(mutex_);
  if (is_running_) return;
  is_running_ = true;
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  is_running_ = false;
}

}  // namespace atl::pytorch
