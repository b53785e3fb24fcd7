// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atoll/core/fd.h"
#include "atoll/transport/frame.h"
#include "atoll/transport/mapped_ring.h"
#include "atoll/transport/shm/ring_copy.h"
#include "atoll/transport/window.h"

namespace atl::transport {

// One direction of a channel: a window in shared memory with one writer and one reader, usually in two processes.
//
// Neither end trusts the other with its memory safety: what the other end wrote is copied, checked, then used.
// Inconsistent values are Error(kProtocol).

/// The indices in the ring's control area, each on a cache line of its own.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> head{0};  ///< the writer's: frames before it are complete
  alignas(128) std::atomic<std::uint64_t> tail{0};  ///< the reader's: frames before it are released
  std::atomic<std::uint32_t> reader_closed{0};      ///< the reader's: it reads no further frames
};

/// The writing end; it owns the memory. One thread at a time.
class RingWriter {
 public:
  /// Throws Error(kInvalidArgument) for a size that is_valid_window refuses, Error(kUnavailable) when out of memory.
  explicit RingWriter(std::size_t window_bytes);

  /// Copies the frame into the ring and publishes it, or returns false for lack of room. Once the reader has closed its
  /// end, frames that do not fit are dropped. The payload must be at most max_payload_of(window).
  bool try_write(const FrameHeader& header, std::span<const std::byte> payload);

  /// Hands over the memory for the reader, once.
  Fd take_memory() noexcept { return ring_.take_memory(); }

 private:
  RingControl& control() const noexcept { return *reinterpret_cast<RingControl*>(ring_.control()); }
  bool has_room(std::size_t bytes);

  MappedRing ring_;
  std::uint64_t head_ = 0;
  RingCopy copy_;
  std::uint64_t known_tail_ = 0;  // the tail as last seen: spares a cache miss per frame
};

/// The reading end, on memory made by the peer. One thread at a time.
class RingReader {
 public:
  /// Throws Error(kProtocol) when `memory` is not what a RingWriter with that window makes, Error(kUnavailable).
  RingReader(const Fd& memory, std::size_t window_bytes);

  /// Returns the oldest frame, valid until pop(), or nullptr.
  const Frame* front() { return has_frame_ ? &frame_ : look(); }

  /// Releases the frame that front() returned.
  void pop() noexcept;

  /// Tells the writer that nothing is read from now on. Any thread.
  void close() noexcept;

 private:
  RingControl& control() const noexcept { return *reinterpret_cast<RingControl*>(ring_.control()); }
  const Frame* look();

  MappedRing ring_;
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  bool has_frame_ = false;
  Frame frame_;
};

}  // namespace atl::transport
