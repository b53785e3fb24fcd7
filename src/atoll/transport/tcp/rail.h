// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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
class Rail final {
 public:
  /// Called when a write has failed: once per connection, perhaps with the link's mutex held, on any thread.
  using OnBroken = std::function<void(Rail& rail)>;

  enum class Lane { kData, kUrgent };

  /// `sink` receives the rail's messages, inside read_on_loop(). The send queue holds at least one message of
  /// `max_message_bytes`.
  Rail(MessageSink& sink, OnBroken on_broken, std::size_t index, std::size_t max_message_bytes);

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
  void compose_head(Segment& segment) noexcept;
  void note_unsent();
  std::size_t gather_current(iovec* pieces, std::size_t* bytes) const noexcept;

  MessageSink& sink_;
  const OnBroken on_broken_;
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
