// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/in_flight_counter.h"

#include <chrono>
#include <thread>

#include "atoll/pytorch/staging/future_of.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kDrainPollInterval{1};

}  // namespace

void InFlightCounter::note(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  for (const auto& work : works) {
    const auto future = future_of(*work);
    if (!future) continue;
    count_->fetch_add(1, std::memory_order_relaxed);
    future->addCallback([count = count_](c10::ivalue::Future&) { count->fetch_sub(1, std::memory_order_release); });
  }
}

bool InFlightCounter::drain(Deadline limit, const std::function<bool()>& is_over) const {
  while (count_->load(std::memory_order_acquire) != 0) {
    if (limit.expired() || is_over()) return false;
    std::this_thread::sleep_for(kDrainPollInterval);
  }
  return true;
}

}  // namespace atl::pytorch
