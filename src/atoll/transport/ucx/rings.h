// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atoll/transport/frame.h"
#include "atoll/transport/shared_memory.h"

// The frames of one channel on both sides of UCX.
namespace atl::transport::ucx {

/// One bit for every place in a ring where a frame may begin. One thread.
class SlotBits {
 public:
  explicit SlotBits(std::size_t window_bytes = 0)
      : mask_(window_bytes / kSlotBytes - 1), words_(window_bytes / kSlotBytes / 64) {}

  bool test(std::uint64_t position) const noexcept { return (words_[word(position)] & bit(position)) != 0; }
  void set(std::uint64_t position) noexcept { words_[word(position)] |= bit(position); }

  /// Clears the bit; returns whether it was set.
  bool take(std::uint64_t position) noexcept {
    const bool was_set = test(position);
    words_[word(position)] &= ~bit(position);
    return was_set;
  }

 private:
  static constexpr std::size_t kSlotBytes = sizeof(FrameHeader);
  std::uint64_t slot(std::uint64_t position) const noexcept { return (position / kSlotBytes) & mask_; }
  std::size_t word(std::uint64_t position) const noexcept { return static_cast<std::size_t>(slot(position) / 64); }
  std::uint64_t bit(std::uint64_t position) const noexcept { return std::uint64_t{1} << (slot(position) % 64); }

  std::uint64_t mask_;
  std::vector<std::uint64_t> words_;
};

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

/// The received frames of one channel, until they are popped. They may start and finish in any order; the reader sees
/// them in the order in which they were sent. One thread reads; functions with _on_loop are the loop's.
class ReceiveRing {
 public:
  /// Called before each frame; `window_bytes` is the sender's and must stay the same. Throws Error(kProtocol) if it
  /// changes, Error(kUnavailable) when out of memory.
  void open_on_loop(std::uint64_t window_bytes);

  /// Returns the place for the frame of `bytes` (header and payload) at `position`, or nullptr to drop it, which ends
  /// it. Throws Error(kProtocol) when there is no credit for it or it overlaps another frame.
  std::byte* begin_on_loop(std::uint64_t position, std::uint64_t bytes);

  /// All bytes of that frame have arrived. Returns whether the reader can see further frames. Throws Error(kProtocol).
  bool finish_on_loop(std::uint64_t position, std::uint64_t bytes);

  /// They will never arrive.
  void abandon_on_loop() noexcept;

  /// Returns the oldest frame, valid until pop(), or nullptr. Throws Error(kProtocol).
  const Frame* front() { return has_frame_ ? &frame_ : look(); }
  void pop() noexcept;

  /// Everything before this position has arrived.
  std::uint64_t received() const noexcept { return received_.load(std::memory_order_acquire); }
  std::uint64_t popped() const noexcept { return popped_.load(std::memory_order_acquire); }
  /// 0: not open.
  std::uint64_t window_bytes() const noexcept { return window_bytes_.load(std::memory_order_acquire); }

  /// Returns all of the memory, mapped twice, for registration with devices.
  std::span<std::byte> memory() const noexcept { return {ring_.data(), 2 * ring_.data_bytes()}; }

  /// No thread reads any more: drops what arrives and returns its credit. The memory is freed after the last transfer.
  void close_on_loop() noexcept;
  bool is_freed_on_loop() const noexcept { return is_closed_ && under_way_ == 0; }

 private:
  const Frame* look();
  void drop_to(std::uint64_t end) noexcept;
  void free_if_idle() noexcept;

  MappedRing ring_;   // the loop's; the reader uses it once received_ has left popped_
  SlotBits started_;  // the loop's, like what follows
  SlotBits finished_;
  std::uint64_t finished_to_ = 0;  // where the farthest finished frame ends
  std::size_t under_way_ = 0;
  bool is_closed_ = false;
  std::atomic<std::uint64_t> window_bytes_{0};
  alignas(64) std::atomic<std::uint64_t> received_{0};
  alignas(64) std::atomic<std::uint64_t> popped_{0};  // reader; the loop once closed
  bool has_frame_ = false;                            // reader
  Frame frame_;                                       // reader
};

}  // namespace atl::transport::ucx
