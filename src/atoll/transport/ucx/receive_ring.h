// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atoll/transport/frame.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/ucx/slot_bits.h"

namespace atl::transport::ucx {

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
