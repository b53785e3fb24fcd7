// SPDX-License-Identifier: Apache-2.0
// Comparing this rank's wall clock with that of the group's first rank, for traces.
#include <cstring>

#include "atoll/collectives/group_impl.h"
#include "atoll/core/bytes.h"

namespace atl::collectives {
namespace {

constexpr int kSeries = 8;
constexpr std::chrono::milliseconds kNext{20};
constexpr std::chrono::milliseconds kPause{10000};
constexpr std::uint8_t kAsk = 0;
constexpr std::uint8_t kAnswer = 1;
constexpr int kReference = 0;

}  // namespace

void Group::Impl::watch_clock() {
  if (options.trace_folder.empty() || options.rank == kReference || options.size < 2) return;
  ports.watch(kReference);
  context->endpoint().loop().post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->ask_time_on_loop();
  });
}

void Group::Impl::ask_time_on_loop() {
  clock_timer.reset();
  if (failure.is_set()) return;
  transport::Link* link = ports.link_if_open(kReference);
  const auto state = link ? link->state() : transport::LinkState::kFailed;
  if (state == transport::LinkState::kClosed || state == transport::LinkState::kFailed) return;
  if (state == transport::LinkState::kUp) {
    tell_time(*link, kAsk, EventRing::now_us(), 0);
    ++clock_asks;
  }
  auto delay = kNext;
  if (clock_asks == kSeries) {
    const std::lock_guard lock(clock_mutex);
    clock_samples.keep_best();
    clock_asks = 0;
    delay = kPause * (1 << std::min(clock_samples.halvings(), 10));
  }
  clock_timer = context->endpoint().loop().add_timer_on_loop(delay, /*repeat=*/false, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->ask_time_on_loop();
  });
}

void Group::Impl::stop_clock_on_loop() {
  if (clock_timer) context->endpoint().loop().cancel_timer_on_loop(*clock_timer);
  clock_timer.reset();
}

void Group::Impl::tell_time(transport::Link& link, std::uint8_t what, std::int64_t asked_us, std::int64_t now_us) {
  std::vector<std::byte> message(kGroupIdBytes);
  const std::uint64_t id = ports.group_id();
  std::memcpy(message.data(), &id, sizeof id);
  ByteWriter writer(message);
  writer.integer(kControlClock);
  writer.integer(what);
  writer.integer(static_cast<std::uint64_t>(asked_us));
  writer.integer(static_cast<std::uint64_t>(now_us));
  link.send_control(message);
}

void Group::Impl::hear_time(transport::Link& link, int from, std::span<const std::byte> message) {
  if (message.size() != 1 + 2 * sizeof(std::uint64_t)) return;
  const std::int64_t now_us = EventRing::now_us();
  ByteReader reader(message, "a time");
  const auto what = reader.integer<std::uint8_t>();
  const auto asked_us = static_cast<std::int64_t>(reader.integer<std::uint64_t>());
  const auto answered_us = static_cast<std::int64_t>(reader.integer<std::uint64_t>());
  if (what == kAsk) return tell_time(link, kAnswer, asked_us, now_us);
  // Times that no clock shows would overflow what is computed from them.
  constexpr std::int64_t kLatest = std::int64_t{1} << 60;
  if (what != kAnswer || from != kReference || asked_us < 0 || asked_us > kLatest || answered_us < 0 ||
      answered_us > kLatest) {
    return;
  }
  const std::lock_guard lock(clock_mutex);
  clock_samples.add(asked_us, answered_us, now_us);
}

}  // namespace atl::collectives
