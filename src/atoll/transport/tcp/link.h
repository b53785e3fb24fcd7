// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "atoll/transport/link_base.h"
#include "atoll/transport/tcp/channel.h"
#include "atoll/transport/tcp/parser.h"
#include "atoll/transport/tcp/send_queue.h"

namespace atl::transport {

/// A link over one TCP stream.
///
/// Sending: the calling thread gives the frame to the socket straight from its own memory; what the socket does not take is
/// copied to a bounded queue that the loop thread empties. Receiving: the loop thread reads into the channels' rings. Credit
/// and control messages overtake queued data, except those that are to follow it. Heartbeats fill silence; the peer's
/// silence ends the link.
class TcpLink final : public LinkBase, private tcp::MessageSink {
 public:
  TcpLink(const LinkOwner& owner, PeerAddress peer);
  ~TcpLink() override;

  LinkKind kind() const noexcept override { return LinkKind::kTcp; }
  Channel& channel(const ChannelId& id) override;
  void close_channel(const ChannelId& id) override;
  bool send_control(std::span<const std::byte> message) override;
  bool send_control_behind_frames(std::span<const std::byte> message) override;
  std::string describe() const override;

  void attach_on_loop(Fd stream, bool initiator, const PeerAddress& authenticated) override;
  void begin_shutdown_on_loop() override;
  bool drained_on_loop() const override;

  /// For TcpChannel. False when the send queue is full; the bells ring when it has room again.
  bool send_frame(TcpChannel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  void send_credit(TcpChannel& channel, std::uint64_t released);

  /// For a link above this one, before it is up: control messages may have tcp::kMaxControlBody bytes.
  void allow_longer_control() noexcept { max_control_ = tcp::kMaxControlBody; }

 private:
  // LinkBase
  void on_tick_on_loop(Clock::time_point now) override;
  void teardown_on_loop() noexcept override;

  // tcp::MessageSink, on the loop
  std::byte* on_data(std::uint32_t number, std::uint32_t payload_bytes) override;
  void on_data_complete(std::uint32_t number) override;
  void on_credit(std::uint32_t number, std::uint64_t released_bytes) override;
  void on_open(std::uint32_t number, const tcp::OpenBody& body) override;
  void on_close(std::uint32_t number) override;
  void on_control(std::span<const std::byte> message) override;
  void on_heartbeat(std::uint64_t interval_ms) override;
  void on_bye() override;

  void on_event_on_loop(std::uint32_t events);
  void receive_on_loop();
  bool receive_turn_on_loop();
  std::ptrdiff_t read_on_loop(bool* drained);
  void sleep_through_frame_on_loop();
  void end_of_stream_on_loop(int error);
  void flush_on_loop();
  void send_heartbeat_on_loop();
  void broken_on_loop();
  TcpChannel& incoming(std::uint32_t number) const;
  TcpChannel& find_or_make(const ChannelId& id, bool claim);

  // The sending half (link_send.cpp).
  enum class Lane { kData, kUrgent };
  bool queue_control(Lane lane, std::span<const std::byte> message);

  // Callers hold mutex_.
  bool can_send() const noexcept { return fd_ && !said_bye_ && send_error_ == 0; }
  void send_small(Lane lane, tcp::Type type, std::uint32_t number, std::span<const std::byte> body);
  std::size_t send_pieces(iovec* pieces, std::size_t count);

  Error lost(const std::string& how) const;
  Error named(const Error& error) const;

  // The loop thread's own.
  tcp::Parser parser_;
  std::unordered_map<std::uint32_t, TcpChannel*> incoming_;  // by the peer's number
  TcpChannel* receiving_ = nullptr;                          // whose frame is being received
  std::uint32_t receiving_bytes_ = 0;
  bool hangup_ = false;          // the kernel has seen the end: read up to it
  bool dirty_[kBellCount] = {};  // bells to ring after this read
  int least_to_wake_for_ = 1;    // bytes, as the kernel knows it
  std::uint64_t bytes_in_ = 0;
  std::uint64_t seen_in_ = 0;
  std::uint64_t seen_out_ = 0;
  std::chrono::milliseconds patience_;
  Clock::duration silence_{0};
  Clock::duration quiet_{0};  // since we sent something
  Clock::time_point last_tick_{};

  mutable std::mutex channels_mutex_;  // guards what follows up to mutex_, which is taken before it
  std::map<ChannelId, std::unique_ptr<TcpChannel>> channels_;
  std::size_t unclaimed_ = 0;          // channels that only the peer has opened
  std::vector<TcpChannel*> outgoing_;  // by our number, from 1

  mutable std::mutex mutex_;  // guards the sending half: what follows
  Fd fd_;
  tcp::SendQueue queue_;
  std::string path_;  // "10.0.0.1:4711 -> 10.0.0.2:4712"
  std::size_t max_control_ = kMaxControlBytes;  // constant once the link is up
  std::uint64_t bytes_out_ = 0;
  int send_error_ = 0;
  bool starved_ = false;  // a sender waits for room in the queue
  bool said_bye_ = false;
  bool peer_done_ = false;  // the peer's bye or end-of-file has come
  bool sent_all_ = false;   // our bye has left and our direction of the stream is closed
};

}  // namespace atl::transport
