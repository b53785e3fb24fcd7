// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/tcp/reassembly.h"
#include "atoll/transport/tcp/segments.h"

namespace atl::transport {

class TcpLink;

/// A channel of a TcpLink. The loop thread writes received frames into a ring of this process, where the receiving
/// thread reads them in place; a frame counts against the sender's credit until it is popped. The functions that are
/// not Channel's are for the link.
class TcpChannel final : public ChannelBase {
 public:
  TcpChannel(TcpLink& link, const ChannelId& id, std::size_t window_bytes);

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  const Frame* front() override;
  void pop() override;

  // Sending half.

  /// Before the first frame: multiplies the window by the number of rails, because credit is returned after what the
  /// peer sends. Link's mutex.
  void widen(std::size_t rails) noexcept {
    window_bytes_ = std::min(window_bytes_ * std::bit_ceil(rails), kMaxWindowBytes);
  }
  std::uint32_t number() const noexcept { return number_; }             ///< 0 until the first frame; link's mutex
  void set_number(std::uint32_t number) noexcept { number_ = number; }  ///< link's mutex
  void note_sent(std::uint64_t bytes) noexcept { sent_.fetch_add(bytes, std::memory_order_release); }
  /// Notes that the peer has released `total` bytes in all. Throws Error(kProtocol) on an impossible total; over
  /// several rails an older total may arrive later. On the loop.
  void note_released_on_loop(std::uint64_t total, bool in_order);
  /// Sender; bytes of the stream.
  std::uint64_t sent() const noexcept { return sent_.load(std::memory_order_relaxed); }
  tcp::SendStream& stream() noexcept { return stream_; }  ///< of a link over several rails; link's mutex

  // Receiving half, on the loop.

  /// The peer opens its direction under `number`. Throws Error(kProtocol) when it does so twice, unless `again` permits
  /// a repetition.
  void open_on_loop(std::uint32_t number, std::uint64_t window_bytes, bool again);
  std::uint32_t peer_number() const noexcept { return peer_number_; }  ///< 0 before; constant once a frame was received
  /// Returns the place of the next frame, or nullptr to drop it. Throws Error(kProtocol) when the peer has no credit
  /// for it.
  std::byte* begin_frame_on_loop(std::uint32_t payload_bytes);
  void finish_frame_on_loop(std::uint32_t payload_bytes);

  /// The same for bytes of the channel's stream, which may arrive in any order and more than once.
  std::byte* begin_segment_on_loop(std::uint64_t position, std::uint32_t bytes);
  /// Returns whether further frames can be read.
  bool finish_segment_on_loop(std::uint64_t position, std::uint32_t bytes);
  /// The peer has closed its direction, after all of its bytes arrived: bytes may be repeated, but there are no new
  /// ones.
  void finish_on_loop();
  /// Returns whether the peer can use the credit of popped().
  bool wants_credit_on_loop() const noexcept { return !is_finished_ && popped() != 0; }
  /// The bytes released so far, whether or not the peer was given the credit. Any thread.
  std::uint64_t popped() const noexcept { return popped_.load(std::memory_order_acquire); }

  /// After mark_closed(): frees the window and returns the peer's credit.
  void free_on_loop();

 private:
  const Frame* look();
  std::byte* ring_at(std::uint64_t position);
  bool publish_frames();
  void return_credit(std::uint64_t released);

  TcpLink& link_;
  std::uint32_t number_ = 0;
  std::uint32_t peer_number_ = 0;         // written before received_ leaves zero
  bool receiving_ = false;                // the loop's: inside a frame
  bool dropping_ = false;                 // the loop's: that frame is dropped
  bool is_finished_ = false;              // the loop's: the peer has closed its direction
  std::uint64_t receive_window_;          // likewise
  MappedRing ring_;                       // likewise
  std::unique_ptr<tcp::SegmentMap> map_;  // the loop's; of a link over several rails
  tcp::SendStream stream_;                // link's mutex

  alignas(64) std::atomic<std::uint64_t> sent_{0};      // sender
  alignas(64) std::atomic<std::uint64_t> released_{0};  // loop
  alignas(64) std::atomic<std::uint64_t> received_{0};  // loop
  alignas(64) std::atomic<std::uint64_t> popped_{0};    // receiver; the loop once closed
  std::uint64_t credited_ = 0;                          // as popped_
  bool has_frame_ = false;                              // receiver, like the rest
  Frame frame_;
};

}  // namespace atl::transport
