// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atoll/transport/link.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

/// Receives what a Parser finds. Each function may throw Error(kProtocol).
class MessageSink {
 public:
  virtual ~MessageSink() = default;

  /// A data frame begins: returns the place for its header and payload (sizeof(FrameHeader) + payload_bytes), or
  /// nullptr to drop them.
  virtual std::byte* on_data(std::uint32_t channel, std::uint32_t payload_bytes) = 0;

  /// The frame that on_data announced last is complete.
  virtual void on_data_complete(std::uint32_t channel) = 0;

  virtual void on_credit(std::uint32_t channel, std::uint64_t released_bytes) = 0;
  virtual void on_open(std::uint32_t channel, const OpenBody& body) = 0;
  virtual void on_close(std::uint32_t channel) = 0;
  virtual void on_control(std::span<const std::byte> message) = 0;
  virtual void on_heartbeat(std::uint64_t interval_ms) = 0;
  virtual void on_bye() = 0;

  /// Bytes of a channel's stream begin: returns the place for them, or nullptr to drop them.
  virtual std::byte* on_segment(std::uint32_t channel, std::uint64_t position, std::uint32_t bytes) = 0;

  /// The segment that on_segment announced last is complete.
  virtual void on_segment_complete() = 0;

  virtual void on_ack(std::uint64_t total_bytes) = 0;
  virtual void on_probe() = 0;  ///< all of its bytes have arrived
};

/// Cuts the byte stream of a TCP link into messages, wherever the stream happens to be split. Frames are written where
/// the sink directs; everything else is small and bounded. After an Error(kProtocol) the parser must not be used again.
class Parser {
 public:
  /// A data frame's payload may have at most `max_payload` bytes.
  Parser(MessageSink& sink, std::size_t max_payload) noexcept : sink_(sink), max_payload_(max_payload) {}

  void consume(std::span<const std::byte> bytes);

  /// The space for the next bytes of the stream that bypasses consume(): the rest of the frame that is being received.
  /// Empty when there is none.
  std::span<std::byte> direct() const noexcept;

  /// The first `count` bytes of direct() were filled.
  void advance_direct(std::size_t count);

  /// Drops the rest of the frame or segment under way.
  void drop_rest() noexcept { frame_to_ = nullptr; }

 private:
  std::size_t collect(std::span<const std::byte> bytes, std::size_t target);
  std::size_t collected_body() const noexcept;
  void on_prefix();
  void on_body();
  void finish_frame();

  MessageSink& sink_;
  const std::size_t max_payload_;
  Prefix prefix_;
  std::size_t collected_ = 0;   // bytes in small_: of the prefix, then also of the body
  std::size_t frame_left_ = 0;  // bytes of a frame, segment or probe still to come
  std::byte* frame_to_ = nullptr;
  std::array<std::byte, sizeof(Prefix) + kMaxControlBody> small_;
};

}  // namespace atl::transport::tcp
