// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/transport/frame.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/ucx/slot_bits.h"

namespace atl::transport::ucx {

/// The frames that one channel accepted: each is kept here, contiguous, until its transfer is done and the receiver has
/// released it. It has the same place in the receiver's ring, so that no two frames under way share a place, whatever
/// order they travel in. One thread writes; the rest is the loop's.
class SendRing {
 public:
  /// Throws Error(kUnavailable) when the system has no memory or descriptor left.
  explicit SendRing(std::size_t window_bytes);

  /// For the writing thread. Returns false when there is no credit for the frame, or its place is still being read.
  bool try_write(const FrameHeader& header, std::span<const std::byte> payload);

  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }    ///< any thread
  std::uint64_t released() const noexcept { return released_.load(std::memory_order_acquire); }  ///< any thread

  struct Piece {
    std::uint64_t position;
    std::span<const std::byte> bytes;  ///< header and payload, without padding
  };
  /// Returns the next frame to be sent. It stays in place until done().
  std::optional<Piece> next();
  bool has_next() const noexcept { return taken_ != written(); }

  /// The frame at `position` has been sent and is no longer read. In any order.
  void done(std::uint64_t position) noexcept;

  /// The receiver has released `total` bytes in all; an older total that arrives late is ignored. Throws
  /// Error(kProtocol) on bytes that were never sent.
  void release(std::uint64_t total);

  /// Returns whether every accepted frame has been sent.
  bool is_done() const noexcept { return done_.load(std::memory_order_acquire) == written(); }

  /// Frees the memory, which no thread may write and no transfer read any more.
  void free_memory() noexcept { ring_ = MappedRing(); }

  /// Returns all of the memory, mapped twice, for registration with devices.
  std::span<std::byte> memory() const noexcept { return {ring_.data(), 2 * ring_.data_bytes()}; }

 private:
  std::uint64_t footprint_at(std::uint64_t position) const noexcept;

  MappedRing ring_;
  alignas(64) std::atomic<std::uint64_t> written_{0};   // writer
  alignas(64) std::atomic<std::uint64_t> released_{0};  // loop, like the rest
  std::atomic<std::uint64_t> done_{0};                  // all frames before it were sent
  std::uint64_t taken_ = 0;
  SlotBits done_ahead_;
};

}  // namespace atl::transport::ucx
