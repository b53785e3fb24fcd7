// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/unfinished.h"

#include <chrono>
#include <exception>
#include <thread>

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kPause{1};

bool has_ended(const c10::weak_intrusive_ptr<c10d::Work>& known) {
  const auto work = known.lock();
  if (!work) return true;
  try {
    return work->isCompleted();
  } catch (const std::exception&) {
    return true;  // some say so that they have failed
  }
}

}  // namespace

void Unfinished::note(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  drop_ended();
  const std::lock_guard lock(mutex_);
  for (const auto& work : works) works_.emplace_back(work);
}

bool Unfinished::drain(Deadline limit, const std::function<bool()>& is_over) {
  while (!drop_ended()) {
    if (limit.expired() || is_over()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Works are asked, and let go, without the mutex: both may need Python's lock, and who holds that one may be waiting here.
bool Unfinished::drop_ended() {
  while (true) {
    std::unique_lock lock(mutex_);
    if (works_.empty()) return true;
    const auto first = works_.front();
    lock.unlock();
    if (!has_ended(first)) return false;
    lock.lock();
    if (!works_.empty() && works_.front() == first) works_.pop_front();
  }
}

}  // namespace atl::pytorch
