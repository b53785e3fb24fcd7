// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/core/fd.h"
#include "atoll/transport/arena.h"
#include "atoll/transport/frame.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {

// One direction of a channel: a window in shared memory with one writer and one reader, usually in two processes.
//
// Neither end trusts the other with its memory safety: what the other end wrote is copied, checked, then used.
// Inconsistent values are Error(kProtocol).

/// The indices in the ring's control area, each on a cache line of its own.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> head{0};     ///< the writer's: frames before it are complete
  alignas(128) std::atomic<std::uint64_t> revoked{0};  ///< the writer's: payloads lent before it may have changed
  alignas(128) std::atomic<std::uint64_t> tail{0};     ///< the reader's: frames before it are released
  std::atomic<std::uint32_t> reader_closed{0};         ///< the reader's: it reads no further frames
  std::atomic<std::uint32_t> is_writing{0};            ///< the reader's: into the payload of the frame at tail
};

/// Copies payloads into a ring whose lines another core has just read, in whichever way is measured to be cheaper:
/// through the cache, which is best if the cores share one, or past it, which is several times faster if they do not. A
/// virtual machine does not report which is the case, and it may change while it runs, so the cost per byte of the
/// current kind is measured all the time, and that of the other one in an occasional trial. One thread.
class RingCopy {
 public:
  explicit RingCopy(std::size_t window_bytes) noexcept : window_bytes_(window_bytes) {}

  void operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

 private:
  enum Kind : std::size_t { kCached, kStreaming };
  Kind choose() const noexcept;

  const std::size_t window_bytes_;
  std::array<double, 2> cost_{};     // nanoseconds per byte, smoothed; 0: not measured yet
  Kind kind_ = kCached;              // of the last copy
  std::uint64_t bytes_of_kind_ = 0;  // copied since the kind last changed
};

/// The writing end; it owns the memory. One thread at a time.
class RingWriter {
 public:
  /// Throws Error(kInvalidArgument) for a size that is_valid_window refuses, Error(kUnavailable) when out of memory.
  explicit RingWriter(std::size_t window_bytes);

  /// Copies the frame into the ring and publishes it, or returns false for lack of room. Once the reader has closed its
  /// end, frames that do not fit are dropped. The payload must be at most max_payload_of(window).
  bool try_write(const FrameHeader& header, std::span<const std::byte> payload);

  /// The same for a frame whose payload the reader finds at `place` in this process's arena, and in the same order; or,
  /// with Payload::kThere, in its own memory.
  bool try_lend(const FrameHeader& header, const ArenaPlace& place);

  /// Returns whether the reader has released every lent frame.
  bool has_returned();

  /// Marks all lent frames as no longer intact: their payloads may change once written_range() is empty.
  void revoke() noexcept;

  /// Returns where the reader is writing a payload that was lent before revoke(), or nothing.
  std::optional<ArenaRange> written_range() const noexcept;

  /// Hands over the memory for the reader, once.
  Fd take_memory() noexcept { return ring_.take_memory(); }

 private:
  RingControl& control() const noexcept { return *reinterpret_cast<RingControl*>(ring_.control()); }
  bool has_room(std::size_t bytes);
  void look_at_tail();
  void publish(const FrameHeader& header, std::size_t bytes) noexcept;
  bool is_read() const noexcept { return control().reader_closed.load(std::memory_order_acquire) == 0; }

  MappedRing ring_;
  std::uint64_t head_ = 0;
  std::uint64_t lent_end_ = 0;  // position after the last frame that is lent
  std::uint64_t revoked_ = 0;   // position after the last frame whose loan was revoked
  RingCopy copy_;
  std::uint64_t known_tail_ = 0;  // the tail as last seen: spares a cache miss per frame
};

/// The reading end, on memory made by the peer. One thread at a time.
class RingReader {
 public:
  /// `lender` is the writer's arena; nullptr: lent frames are an error. Throws Error(kProtocol) when `memory` is not
  /// what a RingWriter with that window makes, Error(kUnavailable).
  RingReader(const Fd& memory, std::size_t window_bytes, const PeerArena* lender = nullptr);

  /// Returns the oldest frame, valid until pop(), or nullptr.
  const Frame* front() { return has_frame_ ? &frame_ : look(); }

  /// Returns whether the frame's payload was what the writer sent until now.
  bool is_intact() const noexcept;

  /// Channel::begin_write and end_write.
  std::byte* begin_write() noexcept;
  void end_write() noexcept { control().is_writing.store(0, std::memory_order_release); }

  /// Releases the frame that front() returned.
  void pop() noexcept;

  /// Tells the writer that nothing is read from now on. Any thread.
  void close() noexcept;

 private:
  RingControl& control() const noexcept { return *reinterpret_cast<RingControl*>(ring_.control()); }
  const Frame* look();
  bool find_lent(Frame& frame);
  bool is_revoked() const noexcept { return control().revoked.load(std::memory_order_seq_cst) > tail_; }
  bool is_lent() const noexcept {
    return frame_.header.where == Payload::kLent || frame_.header.where == Payload::kForResult;
  }

  MappedRing ring_;
  const PeerArena* lender_;
  PeerArena::Mapping lent_;  // keeps the frame's payload mapped
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  bool has_frame_ = false;
  std::size_t frame_bytes_ = 0;  // of the frame in the window
  Frame frame_;
};

}  // namespace atl::transport
