// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "atoll/transport/handshake/closed_channels.h"
#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/tcp/rail.h"
#include "atoll/transport/tcp/reassembly.h"
#include "atoll/transport/tcp/segments.h"
#include "atoll/transport/tcp/spread.h"

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

/// A link over one TCP connection, or over several (rails; see rails.h for how many, docs/rails.md for what travels on
/// them).
///
/// Sending over one rail: the calling thread gives the frame to the socket straight from its own memory; what the
/// socket does not take is copied to a bounded queue that the loop thread empties. Over several, the frame is copied
/// into a ring, from which segments go over the rails and, when one fails, again over the others. Receiving: the loop
/// thread reads into the channels' rings. Credit and control messages overtake queued data, except those that must
/// follow it. Heartbeats fill silence; the peer's silence ends the link, and a rail's silence ends that rail while
/// others are heard from.
class TcpLink final : public LinkBase, private tcp::MessageSink {
 public:
  /// `self` is this end's own address; it outlives the link.
  TcpLink(const LinkOwner& owner, const PeerAddress& self, PeerAddress peer);

  LinkKind kind() const noexcept override { return LinkKind::kTcp; }
  Channel& channel(const ChannelId& id) override;
  void close_channel(const ChannelId& id) override;
  bool send_control(std::span<const std::byte> message) override;
  bool send_control_after_frames(std::span<const std::byte> message) override;
  std::string describe() const override;

  void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) override;
  void begin_shutdown_on_loop() override;
  bool drained_on_loop() const override;
  std::optional<WantedRail> next_rail_on_loop(Clock::time_point now) override;
  void rail_unreachable_on_loop(std::size_t rail, const Error& why) override;
  bool takes_rail_on_loop(std::size_t rail) const override;
  void attach_rail_on_loop(std::size_t rail, ByteStream stream) override;

  /// For TcpChannel. Returns false when the send queue is full; the bells ring when it has room again.
  bool send_frame(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  void send_credit(TcpChannel& channel, std::uint64_t released);
  /// Drops the rest of segments of this channel that are being received.
  void drop_segments_on_loop(const TcpChannel& channel);

  /// For a link above this one, before it is up: control messages may have tcp::kMaxControlBody bytes.
  void allow_longer_control() noexcept { max_control_ = tcp::kMaxControlBody; }

 private:
  using Rail = tcp::Rail;
  using Lane = Rail::Lane;

  /// A rail as this side opens it.
  struct Way {
    WantedRail wanted;
    tcp::RailScheduler::Expected expected;
    bool is_being_made = false;
    Clock::time_point not_before{};
    std::chrono::milliseconds pause{0};  // before the next attempt
    std::string trouble;                 // why it is down; link's mutex
  };

  // LinkBase
  void on_tick_on_loop(Clock::time_point now) override;
  void teardown_on_loop() noexcept override;
  std::string label() const override { return peer_name() + " (" + describe() + ")"; }

  // tcp::MessageSink, on the loop: messages of the rail that is being read
  std::byte* on_data(std::uint32_t number, std::uint32_t payload_bytes) override;
  void on_data_complete(std::uint32_t number) override;
  std::byte* on_segment(std::uint32_t number, std::uint64_t position, std::uint32_t bytes) override;
  void on_segment_complete() override;
  void on_ack(std::uint64_t total_bytes) override;
  void on_probe() override;
  void on_credit(std::uint32_t number, std::uint64_t released_bytes) override;
  void on_open(std::uint32_t number, const tcp::OpenBody& body) override;
  void on_close(std::uint32_t number) override;
  void on_control(std::span<const std::byte> message) override;
  void on_heartbeat(std::uint64_t interval_ms) override;
  void on_bye() override;

  // Receiving (link_receive.cpp).
  void on_event_on_loop(Rail& rail, std::uint32_t events);
  void receive_on_loop(Rail& rail);
  bool receive_turn_on_loop(Rail& rail);
  void end_of_stream_on_loop(Rail& rail, int error);
  void take_control_on_loop(const tcp::Prefix& prefix, std::span<const std::byte> body);
  void take_bye_on_loop();
  void refuse_overlap_on_loop(const TcpChannel* channel, std::uint64_t position, std::uint32_t bytes) const;
  void acknowledge_on_loop(Rail& rail, std::uint64_t least_bytes);
  void broken_on_loop(Rail& rail, std::uint64_t generation);
  TcpChannel& incoming(std::uint32_t number) const;

  TcpChannel& find_or_make(const ChannelId& id, bool claim);

  // Sending (link_send.cpp).
  bool queue_control(Lane lane, std::span<const std::byte> message);
  void flush_on_loop(Rail& rail);
  void send_heartbeat_on_loop(Rail& rail);
  void on_broken(Rail& rail);  // any thread
  // Callers hold mutex_ from here to the end of this part.
  bool can_send() const noexcept { return !said_bye_ && (spread_ || rails_.front()->can_write()); }
  bool send_whole(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  bool send_spread(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  tcp::OpenBody open_body(const TcpChannel& channel) const noexcept;
  void number_channel(TcpChannel& channel);
  void send_small(Rail& rail, Lane lane, tcp::Type type, std::uint32_t number, std::span<const std::byte> body);
  void give_credit(std::uint32_t number, std::uint64_t released);
  bool after_sending();

  // Rails (link_rails.cpp).
  std::unique_ptr<Rail> make_rail(std::size_t index, std::size_t max_message_bytes);
  void plan_rails_on_loop(const PeerAddress& authenticated);
  void open_rail_on_loop(Rail& rail, ByteStream stream);
  void drop_rail_on_loop(Rail& rail, const std::string& why);
  void repeat_credit_on_loop();
  bool is_another_rail_heard_on_loop(const Rail& rail, Clock::duration within) const;
  void watch_rails_on_loop(Clock::duration passed);
  void note_progress_on_loop(Rail& rail, Clock::duration passed);
  Clock::duration busy_time() const;
  std::size_t open_rails_on_loop() const noexcept;
  std::string describe_rails() const;  // callers hold mutex_

  /// Runs `step` with mutex_ held, and returns what it returns.
  template <class Step>
  auto locked(const Step& step) const {
    const std::lock_guard lock(mutex_);
    return step();
  }

  const PeerAddress& self_;

  // The loop thread's own.
  std::unordered_map<std::uint32_t, TcpChannel*> incoming_;  // by the peer's number
  std::unique_ptr<tcp::ControlReader> control_;              // of a link over several rails
  Rail* receiving_ = nullptr;                                // the rail whose messages come
  bool is_initiator_ = false;
  std::chrono::milliseconds patience_;
  Clock::time_point last_tick_{};

  mutable std::mutex channels_mutex_;  // guards what follows up to mutex_, which is taken before it
  std::map<ChannelId, std::unique_ptr<TcpChannel>> channels_;
  ClosedChannels closed_early_;
  std::size_t unclaimed_ = 0;          // channels that only the peer has opened
  std::vector<TcpChannel*> outgoing_;  // by our number, from 1

  mutable std::mutex mutex_;                    // guards the sending half: what follows
  std::vector<std::unique_ptr<Rail>> rails_;    // one at first; grows once, before the link is up
  std::vector<Way> ways_;                       // of a link over several rails: as many
  std::unique_ptr<tcp::Spread> spread_;         // likewise
  bool starved_ = false;                        // a sender waits for room in the queue
  std::size_t max_control_ = kMaxControlBytes;  // constant once the link is up
  bool said_bye_ = false;
  bool peer_done_ = false;  // the peer's bye or end-of-file has come
  bool sent_all_ = false;   // our bye has left; over one rail our direction of the stream is closed
};

}  // namespace atl::transport
