// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/channel.h"

#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/link.h"

namespace atl::transport {

void UcxChannel::claim() {
  sending_ = std::make_unique<ucx::SendRing>(window_bytes_);
  sender_.store(sending_.get(), std::memory_order_release);
}

bool UcxChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  const LinkState state = link_.state();
  if (state != LinkState::kUp) {
    if (state == LinkState::kConnecting) return false;
    link_.throw_error();
  }
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->try_send(header, payload);
  if (payload.size() > max_payload() || header.payload_bytes != payload.size()) {
    throw Error(ErrorKind::kInvalidArgument, "a frame of " + std::to_string(payload.size()) + " bytes, announced as " +
                                                 std::to_string(header.payload_bytes) + ", on a channel that takes " +
                                                 std::to_string(max_payload()));
  }
  if (is_closed()) throw Error(ErrorKind::kAborted, "the channel to " + link_.peer_name() + " was closed by this side");
  if (link_.is_leaving() || !sending_->try_write(header, payload)) return false;
  link_.wake(*this);
  return true;
}

const Frame* UcxChannel::front() {
  if (Channel* const other = over_stream_.load(std::memory_order_acquire)) return other->front();
  if (is_closed())
    throw Error(ErrorKind::kAborted, "the channel from " + link_.peer_name() + " was closed by this side");
  const LinkState state = link_.state();
  // Frames may arrive before this end is up, but it cannot take yet what they announce, such as direct messages.
  if (state == LinkState::kConnecting) return nullptr;
  try {
    if (const Frame* const frame = receiving_.front()) return frame;
    if (state == LinkState::kUp) return nullptr;
    // The link has ended: everything that arrived is visible now.
    if (const Frame* const frame = receiving_.front()) return frame;
  } catch (const Error& error) {
    const Error named(error.kind(), link_.peer_name() + ": " + error.what());
    link_.fail_later(named);
    throw named;
  }
  link_.throw_error();
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
