// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/staging_clock.h"

#include <utility>

namespace atl::pytorch {
namespace {

constexpr std::size_t kMaxUnderWay = 256;  // further ones are not measured

c10::Event timed_on(const c10::Stream& stream) {
  c10::Event event(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(stream);
  return event;
}

}  // namespace

std::optional<c10::Event> StagingClock::begin(const c10::Stream& stream) const {
  {
    const std::lock_guard lock(mutex_);
    if (!is_on_ || under_way_.size() >= kMaxUnderWay) return std::nullopt;
  }
  return timed_on(stream);
}

void StagingClock::end(std::optional<c10::Event> started, const c10::Stream& stream) {
  if (!started) return;
  c10::Event ended = timed_on(stream);
  const std::lock_guard lock(mutex_);
  under_way_.push_back({std::move(*started), std::move(ended)});
  count_ended();
}

void StagingClock::add(std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  if (is_on_) seconds_ += std::chrono::duration<double>(time).count();
}

double StagingClock::seconds() {
  const std::lock_guard lock(mutex_);
  is_on_ = true;
  count_ended();
  return seconds_;
}

void StagingClock::count_ended() {
  while (!under_way_.empty() && under_way_.front().end.query()) {
    const Span& span = under_way_.front();
    seconds_ += span.begin.elapsedTime(span.end) * 1e-3;
    under_way_.pop_front();
  }
}

}  // namespace atl::pytorch
