// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/server_wait.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/operators/server_load.h"

namespace atl::infer {
namespace {

constexpr double kWaitMemory = 2;
constexpr double kTooOld = 10;

}  // namespace

void ServerWait::told(double now, const wire::Load& load) {
  if (load.turns == 0) return;
  const std::lock_guard lock(mutex_);
  load_ = load;
  told_at_ = now;
}

void ServerWait::waited(double now, double seconds) {
  const std::lock_guard lock(mutex_);
  const double kept = std::exp(-std::max(0.0, now - waited_at_) / kWaitMemory);
  waited_ = waited_ * kept + seconds;
  inferences_ = inferences_ * kept + 1;
  waited_at_ = now;
}

void ServerWait::forget() {
  const std::lock_guard lock(mutex_);
  told_at_ = waited_at_ = kNever;
  waited_ = inferences_ = 0;
}

double ServerWait::expected(double now) const {
  const std::lock_guard lock(mutex_);
  if (now - told_at_ > kTooOld) return 0;
  plan::ServerLoad load;
  load.turns = static_cast<int>(load_.turns);
  load.computing = load_.computing;
  load.waiting = load_.waiting;
  load.turn_seconds = wire::seconds(load_.turn_us);
  if (now - waited_at_ <= kTooOld) load.waited = waited_ / inferences_;
  return plan::expected_wait(load);
}

}  // namespace atl::infer
