// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/outbox.h"

#include <memory>
#include <utility>
#include <vector>

namespace atl::infer {

void Outbox::push(wire::Message message) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(message), {}, {}});
}

void Outbox::push(const wire::FrameHeader& header, HostBytes payload) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::nullopt, header, std::move(payload)});
}

std::optional<Outbox::Frame> Outbox::take(PayloadWriter* memory) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  Waiting next = std::move(queue_.front());
  queue_.pop_front();
  if (next.message) return Frame{std::move(next.message), {}, nullptr};
  // Done under the lock that over() takes: after over() the payload may be changed.
  const auto lent = memory == nullptr ? std::nullopt : memory->put(next.payload.bytes);
  return Frame{std::nullopt, next.header,
               lent ? wire::make_frame(next.header, *lent) : wire::make_frame(next.header, next.payload.bytes)};
}

Outbox::Unsent Outbox::over(std::uint64_t inference, bool leaves) {
  const std::lock_guard lock(mutex_);
  Unsent unsent;
  const auto is_its = [&](const Waiting& each) { return !each.message && each.header.id == inference; };
  for (Waiting& each : queue_) {
    if (!is_its(each)) continue;
    if (leaves) {
      const auto own = std::make_shared<std::vector<std::byte>>(each.payload.bytes.begin(), each.payload.bytes.end());
      each.payload = {*own, own};
      continue;
    }
    if (unsent.bytes == 0 && each.header.offset > 0) unsent.cut = each.header;
    unsent.bytes += each.payload.bytes.size();
  }
  if (!leaves) std::erase_if(queue_, is_its);
  return unsent;
}

void Outbox::clear() {
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

}  // namespace atl::infer
