// SPDX-License-Identifier: Apache-2.0
// Compares this rank's wall clock with that of the group's first rank, for traces.
#include "atoll/collectives/group/impl.h"

namespace atl::collectives {
namespace {

constexpr int kSeries = 8;
constexpr std::chrono::milliseconds kNext{20};
constexpr std::chrono::milliseconds kPause{10000};
constexpr int kReference = 0;

}  // namespace

void Group::Impl::watch_clock() {
  if (options.trace_folder.empty() || options.rank == kReference || options.size < 2) return;
  ports.watch(kReference);
  context->endpoint().loop().post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->request_time_on_loop();
  });
}

void Group::Impl::request_time_on_loop() {
  clock_timer.reset();
  if (failure.is_set()) return;
  transport::Link* link = ports.link_if_open(kReference);
  const auto state = link ? link->state() : transport::LinkState::kFailed;
  if (state == transport::LinkState::kClosed || state == transport::LinkState::kFailed) return;
  if (state == transport::LinkState::kUp) {
    link->send_control(encode(ports.group_id(), ClockMessage{false, EventRing::now_us(), 0}));
    ++clock_requests;
  }
  auto delay = kNext;
  if (clock_requests == kSeries) {
    const std::lock_guard lock(clock_mutex);
    clock_samples.keep_best();
    clock_requests = 0;
    delay = kPause * (1 << std::min(clock_samples.halvings(), 10));
  }
  clock_timer = context->endpoint().loop().add_timer_on_loop(delay, /*repeat=*/false, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->request_time_on_loop();
  });
}

void Group::Impl::stop_clock_on_loop() {
  if (clock_timer) context->endpoint().loop().cancel_timer_on_loop(*clock_timer);
  clock_timer.reset();
}

void Group::Impl::on_clock_message(transport::Link& link, int from, std::span<const std::byte> body) {
  const std::int64_t now_us = EventRing::now_us();
  const auto heard = decode_clock(body);
  if (!heard) return;
  if (!heard->is_answer) {
    link.send_control(encode(ports.group_id(), ClockMessage{true, heard->asked_us, now_us}));
  } else if (from == kReference) {
    const std::lock_guard lock(clock_mutex);
    clock_samples.add(heard->asked_us, heard->answered_us, now_us);
  }
}

}  // namespace atl::collectives
