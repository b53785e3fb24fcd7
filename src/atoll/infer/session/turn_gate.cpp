// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/turn_gate.h"

#include "atoll/infer/engine/caller_check.h"

namespace atl::infer {

void TurnGate::close() {
  std::unique_lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return inside_ == 0; });
}

bool TurnGate::enter(const std::function<void()>& check) {
  CallerCheck caller(check);
  std::unique_lock lock(mutex_);
  if (is_closed_) throw Error(ErrorKind::kInvalidArgument, "the session is closed: make another one");
  ++inside_;
  const bool waits = is_taken_;
  try {
    while (!changed_.wait_for(lock, CallerCheck::kPeriod, [this] { return !is_taken_ || is_closed_; })) {
      lock.unlock();
      caller();
      lock.lock();
    }
  } catch (...) {
    lock.lock();
    --inside_;
    changed_.notify_all();
    throw;
  }
  if (is_closed_) {
    --inside_;
    changed_.notify_all();
    throw Error(ErrorKind::kAborted, "the session was closed before the turn of this inference");
  }
  is_taken_ = true;
  return waits;
}

void TurnGate::leave() {
  const std::lock_guard lock(mutex_);
  is_taken_ = false;
  --inside_;
  changed_.notify_all();
}

}  // namespace atl::infer
