// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/channel.h"

#include "atoll/core/error.h"
#include "atoll/transport/ucx/link.h"

namespace atl::transport {

UcxChannel::UcxChannel(UcxLink& link, const ChannelId& id, std::size_t window_bytes)
    : ChannelBase(link, id, window_bytes), link_(link) {}

void UcxChannel::open() {
  sending_ = std::make_unique<ucx::SendRing>(window_bytes_);
  sender_.store(sending_.get(), std::memory_order_release);
}

bool UcxChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!may_send(header, payload)) return false;
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->try_send(header, payload);
  if (link_.is_leaving() || !sending_->try_write(header, payload)) return false;
  link_.wake(*this);
  return true;
}

const Frame* UcxChannel::front() {
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->front();
  // Frames may arrive before this end is up, but it cannot take yet what they announce, such as direct messages.
  return front_of([this] { return link_.state() == LinkState::kConnecting ? nullptr : receiving_.front(); });
}

void UcxChannel::pop() {
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->pop();
  receiving_.pop();
  const std::uint64_t popped = receiving_.popped();
  if (popped - announced_ < receiving_.window_bytes() / 4) return;
  announced_ = popped;
  link_.wake(*this);
}

bool UcxChannel::owes_credit_on_loop() const noexcept {
  const std::uint64_t window = receiving_.window_bytes();
  const std::uint64_t untold = receiving_.popped() - told_;
  // A closed channel returns all of it: then the peer sends no more marks for the channel (send_marks).
  return window != 0 && (is_closed() ? untold != 0 : untold >= window / 4);
}

}  // namespace atl::transport
