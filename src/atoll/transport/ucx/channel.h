// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/ucx/rings.h"
#include "atoll/transport/ucx/worker.h"

namespace atl::transport {

class UcxLink;

/// A channel of a UcxLink. Frames wait in rings of both processes; the loop thread gives them to UCX and takes them
/// from it. If UCX cannot serve the pair, the channel of the same name on the link's stream does everything. The
/// functions that are not Channel's are for the link.
class UcxChannel final : public ChannelBase {
 public:
  UcxChannel(UcxLink& link, const ChannelId& id, std::size_t window_bytes);

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  const Frame* front() override;
  void pop() override;

  /// Makes the send ring, before claim(). Throws Error(kUnavailable).
  void open();

  /// Hands everything over to `channel`. Called before the link is up.
  void go_over_stream(Channel& channel) noexcept { over_stream_.store(&channel, std::memory_order_release); }

  /// The bytes of frames accepted so far, and whether the peer has released them all. Any thread, once claimed.
  std::uint64_t written() const noexcept { return sending_->written(); }
  bool all_released() const noexcept { return sending_->released() == sending_->written(); }

  /// Notes that the loop must check this channel; returns true if that was noted already. Any thread.
  bool note_waiting() noexcept { return waiting_.exchange(true, std::memory_order_acq_rel); }

  // On the loop.

  void clear_waiting() noexcept { waiting_.exchange(false, std::memory_order_acq_rel); }
  ucx::SendRing* sending() noexcept { return sender_.load(std::memory_order_acquire); }  ///< nullptr: not claimed
  ucx::ReceiveRing& receiving() noexcept { return receiving_; }

  /// Return whether enough was released that the peer should get credit, and all that was, which counts as sent.
  bool owes_credit_on_loop() const noexcept;
  std::uint64_t take_credit_on_loop() noexcept { return told_ = receiving_.popped(); }

  bool is_active = false;                             ///< the link's: it is among those to check
  std::unique_ptr<ucx::Registration> send_memory;     ///< the link's: with devices that need it
  std::unique_ptr<ucx::Registration> receive_memory;  ///< likewise

 private:
  UcxLink& link_;
  std::atomic<Channel*> over_stream_{nullptr};
  std::atomic<bool> waiting_{false};
  std::unique_ptr<ucx::SendRing> sending_;
  std::atomic<ucx::SendRing*> sender_{nullptr};  // the same, once it is complete
  ucx::ReceiveRing receiving_;
  std::uint64_t told_ = 0;       // the loop's: credit sent to the peer
  std::uint64_t announced_ = 0;  // the receiver's: credit announced to the loop
};

}  // namespace atl::transport
