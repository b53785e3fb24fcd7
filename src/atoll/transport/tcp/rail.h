// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/transport/stream/byte_stream.h"
#include "atoll/transport/tcp/parser.h"
#include "atoll/transport/tcp/segments.h"
#include "atoll/transport/tcp/send_queue.h"

namespace atl::transport {
class TcpChannel;
}

namespace atl::transport::tcp {

/// One TCP connection of a link: its socket, the queue for it, and the parser of what it receives. Writing is guarded
/// by the link's mutex, reading is the loop's. A rail may be closed and opened again.
class Rail final : private MessageSink {
 public:
  /// Receives the rail's messages on the loop, as MessageSink does, with the rail.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::byte* on_data(Rail& rail, std::uint32_t channel, std::uint32_t payload_bytes) = 0;
    virtual void on_data_complete(Rail& rail) = 0;
    virtual std::byte* on_segment(Rail& rail, std::uint32_t channel, std::uint64_t position, std::uint32_t bytes) = 0;
    virtual void on_segment_complete(Rail& rail) = 0;
    virtual void on_ack(Rail& rail, std::uint64_t total_bytes) = 0;
    virtual void on_probe(Rail& rail) = 0;
    virtual void on_credit(std::uint32_t channel, std::uint64_t released_bytes) = 0;
    virtual void on_open(std::uint32_t channel, const OpenBody& body) = 0;
    virtual void on_close(std::uint32_t channel) = 0;
    virtual void on_control(std::span<const std::byte> message) = 0;
    virtual void on_heartbeat(std::uint64_t interval_ms) = 0;
    virtual void on_bye() = 0;
    /// A write has failed; called once per connection, perhaps with the link's mutex held, on any thread.
    virtual void on_broken(Rail& rail) = 0;
  };

  enum class Lane { kData, kUrgent };

  /// The send queue holds at least one message of `max_message_bytes`.
  Rail(Owner& owner, std::size_t index, std::size_t max_message_bytes);

  std::size_t index() const noexcept { return index_; }

  // Under the link's mutex.

  /// Takes over a connected stream; the rail is closed.
  void open(ByteStream stream);
  /// Moves the segments on their way to `unfinished`. Does not affect received bytes.
  void close(SegmentList* unfinished) noexcept;
  bool is_open() const noexcept { return static_cast<bool>(stream_); }  ///< also on the loop
  int fd() const noexcept { return stream_.fd(); }                      ///< likewise
  /// The number of times it was opened, which tells a connection from the previous one.
  std::uint64_t generation() const noexcept { return generation_; }
  const std::string& path() const noexcept { return path_; }  ///< "10.0.0.1:4711 -> 10.0.0.2:4712"; empty: never open

  bool can_write() const noexcept { return stream_ && send_error_ == 0; }
  int send_error() const noexcept { return send_error_; }
  std::uint64_t bytes_out() const noexcept { return bytes_out_; }
  SendQueue& queue() noexcept { return queue_; }
  bool has_left() const noexcept { return queue_.empty() && !stream_.holds_output(); }  ///< the socket has everything

  /// Writes the next bytes of the stream; returns how many the socket took, 0 when it is full or broken.
  std::size_t write_pieces(iovec* pieces, std::size_t count);

  /// Writes a small message at once or queues it; returns false when the lane is full.
  bool write_small(Lane lane, Type type, std::uint32_t channel, std::span<const std::byte> body);

  /// Returns whether nothing waits, so that the next write may go out at once.
  bool is_ready() const noexcept { return can_write() && current_ == nullptr && has_left(); }

  /// Writes a segment, or as much of it as the socket takes now; the rest follows with write_rest. Only when
  /// is_ready(). The segment stays in on_their_way() until it is acknowledged.
  void write_segment(Segment* segment);

  /// Writes what waits, as far as the socket takes it.
  void write_rest();

  /// Notes that the peer has read `total` bytes in all; take_acknowledged() then returns the segments that it has read
  /// completely, in order. Throws Error(kProtocol) on an impossible total.
  void acknowledge(std::uint64_t total);
  Segment* take_acknowledged() noexcept;
  std::uint64_t acknowledged() const noexcept { return acknowledged_; }
  const SegmentList& on_their_way() const noexcept { return on_their_way_; }

  // On the loop.

  Parser& parser() noexcept { return *parser_; }
  bool holds_input_on_loop() const noexcept { return stream_.holds_input(); }  ///< which no event reports
  bool wants_write_on_loop() const { return stream_.wants_write(); }           ///< write_rest, now

  /// Reads once, straight into the frame or segment under way if there is one. Returns what readv returns.
  std::ptrdiff_t read_on_loop(bool* drained);
  /// Called after a read that took everything: a frame is useless before its last byte, so the kernel need not wake the
  /// loop for each of its packets.
  void sleep_through_frame_on_loop();
  std::uint64_t bytes_in() const noexcept { return bytes_in_; }

  /// Describes the bytes being received. The link's.
  struct Incoming {
    TcpChannel* channel = nullptr;  ///< none: the control stream, or nothing
    std::uint64_t position = 0;
    std::uint32_t bytes = 0;
    bool is_segment = false;  ///< a segment is under way
  };
  Incoming incoming;

  /// The connection's health; the link's, between ticks.
  struct Watch {
    bool hangup = false;        ///< the kernel has seen the end: read up to it
    bool owes = false;          ///< received bytes must be acknowledged
    std::uint64_t told = 0;     ///< bytes_in as of the last acknowledgement
    std::uint64_t seen_in = 0;  ///< as of the last tick, like the next two
    std::uint64_t seen_out = 0;
    std::uint64_t seen_acknowledged = 0;
    Clock::duration silence{0};  ///< since bytes were received
    Clock::duration quiet{0};    ///< since bytes were sent
    Clock::duration stalled{0};  ///< since the peer last read or sent, while bytes were on their way
  };
  Watch watch;

 private:
  // MessageSink
  std::byte* on_data(std::uint32_t channel, std::uint32_t bytes) override {
    return owner_.on_data(*this, channel, bytes);
  }
  void on_data_complete(std::uint32_t) override { owner_.on_data_complete(*this); }
  void on_credit(std::uint32_t channel, std::uint64_t bytes) override { owner_.on_credit(channel, bytes); }
  void on_open(std::uint32_t channel, const OpenBody& body) override { owner_.on_open(channel, body); }
  void on_close(std::uint32_t channel) override { owner_.on_close(channel); }
  void on_control(std::span<const std::byte> message) override { owner_.on_control(message); }
  void on_heartbeat(std::uint64_t interval_ms) override { owner_.on_heartbeat(interval_ms); }
  void on_bye() override { owner_.on_bye(); }
  std::byte* on_segment(std::uint32_t channel, std::uint64_t position, std::uint32_t bytes) override {
    return owner_.on_segment(*this, channel, position, bytes);
  }
  void on_segment_complete() override { owner_.on_segment_complete(*this); }
  void on_ack(std::uint64_t total_bytes) override { owner_.on_ack(*this, total_bytes); }
  void on_probe() override { owner_.on_probe(*this); }

  void compose_head(Segment& segment) noexcept;
  void note_unsent();
  std::size_t gather_current(iovec* pieces, std::size_t* bytes) const noexcept;

  Owner& owner_;
  const std::size_t index_;

  // Under the link's mutex; stream_ changes on the loop only.
  ByteStream stream_;
  std::uint64_t generation_ = 0;
  std::string path_;
  SendQueue queue_;
  std::uint64_t bytes_out_ = 0;
  int send_error_ = 0;
  Segment* current_ = nullptr;  // the last of on_their_way_ while it is not with the socket
  std::size_t current_sent_ = 0;
  std::array<std::byte, 2 * sizeof(Prefix) + sizeof(OpenBody) + sizeof(std::uint64_t)> head_;
  std::size_t head_bytes_ = 0;
  SegmentList on_their_way_;
  std::uint64_t acknowledged_ = 0;

  // The loop's.
  std::optional<Parser> parser_;
  int least_to_wake_for_ = 1;  // bytes, as set in the kernel
  std::uint64_t bytes_in_ = 0;
};

}  // namespace atl::transport::tcp
