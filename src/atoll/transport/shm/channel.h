// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/shm/ring.h"

namespace atl::transport {

class ShmLink;

/// A channel of a ShmLink: a ring to the peer, made by this side, and a ring from the peer, which arrives when the peer
/// makes it. The functions that are not Channel's are called by the link, one at a time.
class ShmChannel final : public ChannelBase {
 public:
  ShmChannel(ShmLink& link, const ChannelId& id, std::size_t window_bytes);

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  bool can_lend() const noexcept override;
  bool try_lend(const FrameHeader& header, std::span<const std::byte> payload, const ArenaPlace& place) override;
  bool has_returned() override;
  void revoke() noexcept override;
  bool is_written() const noexcept override;
  const Frame* front() override;
  bool is_intact() const noexcept override;
  std::byte* begin_write() noexcept override;
  void end_write() noexcept override;
  void pop() override;

  /// Makes the ring to the peer and returns its memory. Called before the link is up, or before the channel's first
  /// use. Throws Error(kUnavailable).
  Fd open();

  /// Takes the ring from the peer. Returns false if there already is one.
  bool accept(std::unique_ptr<RingReader> ring);

  /// Sets the bell that sent frames and returned credit ring. Called before the link is up.
  void set_peer_bell(BellWords& bell) noexcept { peer_bell_.store(&bell, std::memory_order_release); }

  /// Frees both rings; the peer's frames are dropped from here on. Neither thread of the channel may be using it.
  void close() noexcept;

 private:
  void ring_peer() noexcept;
  bool has_writer() const noexcept;

  ShmLink& link_;
  std::uint32_t passed_slab_ = 0;  // of the arena, to the peer, before the last lent frame; 0: none
  std::unique_ptr<RingWriter> writer_;
  std::unique_ptr<RingReader> reader_owner_;
  std::atomic<RingReader*> reader_{nullptr};
  std::atomic<BellWords*> peer_bell_{nullptr};
};

}  // namespace atl::transport
