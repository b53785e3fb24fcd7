// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "atoll/transport/handshake/closed_channels.h"
#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/shm/ring.h"
#include "atoll/transport/shm/wire.h"

namespace atl::transport {

class ShmLink;

/// A channel of a ShmLink: a ring to the peer, made by this side, and a ring from the peer, which arrives when the peer
/// makes it. The functions that are not Channel's are called by the link, one at a time.
class ShmChannel final : public ChannelBase {
 public:
  ShmChannel(ShmLink& link, const ChannelId& id, std::size_t window_bytes);

  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  bool can_lend() const noexcept override;
  std::optional<Payload> try_lend(const FrameHeader& header, std::span<const std::byte> payload,
                                  const ArenaPlace& place) override;
  bool has_returned() override;
  void revoke() noexcept override;
  std::optional<ArenaRange> written_range() const noexcept override;
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

/// A link between two processes of one host. Frames travel through rings in shared memory (ring.h) without a system
/// call, except to wake a sleeper. A Unix stream carries the rings' memory, control messages and the goodbye; an
/// end-of-file without one means that the peer died.
class ShmLink final : public LinkBase {
 public:
  using LinkBase::LinkBase;

  LinkKind kind() const noexcept override { return LinkKind::kShm; }
  Channel& channel(const ChannelId& id) override;
  void close_channel(const ChannelId& id) override;
  bool send_control(std::span<const std::byte> message) override;
  bool send_control_after_frames(std::span<const std::byte> message) override;
  std::string describe() const override { return "shm"; }

  void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) override;
  bool has_arena() const noexcept { return options().arena != nullptr; }

  /// Passes a slab of this process's arena to the peer, once. Any thread. Returns false if the system has no descriptor
  /// left for that, which it is asked for once a second; the first time there is a warning.
  bool pass_slab(std::uint32_t slab);

  /// Returns whether the peer's process has certainly ended: nothing writes into this process's memory for it any more.
  /// Any thread, once the stream is attached.
  bool has_peer_ended() const noexcept;

  void begin_shutdown_on_loop() override;
  bool drained_on_loop() const override;

 private:
  void on_tick_on_loop(Clock::time_point now) override;
  void on_connecting_tick_on_loop(Clock::time_point now) override;
  void teardown_on_loop() noexcept override;
  std::string label() const override;

  void on_stream_event_on_loop(std::uint32_t events);
  void receive_on_loop();
  void handle_on_loop(const shm::Message& message);
  void handle_hello_on_loop(const shm::Message& message);
  void handle_open_on_loop(const shm::Message& message);
  void handle_slab_on_loop(const shm::Message& message);
  void flush_later_on_loop();

  ShmChannel& find_or_make(const ChannelId& id);
  void open(const ChannelId& id);
  void flush();

  pid_t peer_process_ = 0;  // constant once the stream is attached; 0: not known here

  // The loop thread's own.
  bool watches_output_ = false;
  std::uint64_t seen_beats_ = 0;
  std::chrono::milliseconds patience_{0};  // a peer that is silent for longer is lost
  Clock::duration silence_{0};
  Clock::time_point last_tick_{};

  PeerArena peer_arena_;

  mutable std::mutex mutex_;  // guards what follows; the receiving half of the stream is the loop thread's
  shm::Stream stream_;
  bool attached_ = false;
  bool said_bye_ = false;
  RemoteDoorbell peer_doorbell_;
  std::set<std::uint32_t> passed_slabs_;
  Clock::time_point passes_again_at_{};
  bool has_warned_ = false;  // that slabs cannot be passed
  std::map<ChannelId, std::unique_ptr<ShmChannel>> channels_;
  ClosedChannels closed_early_;
  std::vector<ChannelId> waiting_;  // channels to open once the stream is attached
  std::size_t unclaimed_ = 0;       // channels that only the peer has opened
};

}  // namespace atl::transport
