// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "atoll/transport/shared_memory.h"
#include "atoll/transport/tcp/wire.h"

// Streams put together again from segments that arrive over several rails in any order.
namespace atl::transport::tcp {

/// Tracks which bytes of a stream have arrived in segments in any order: one bit per kUnit of the window. Allocates
/// when it is made; each call takes time proportional to the segment's units over 64.
class SegmentMap {
 public:
  /// `window_bytes` is a power of two, at least 64 units: how far after end() a segment may end.
  explicit SegmentMap(std::uint64_t window_bytes);

  /// Everything before this position has arrived. A multiple of kUnit.
  std::uint64_t end() const noexcept { return end_; }

  /// Returns whether the segment's bytes have arrived already. The last unit of a segment counts as whole. Throws
  /// Error(kProtocol) for one that does not begin at a unit, ends beyond the window, or has arrived in part: a segment
  /// is sent again with the same bounds.
  bool has(std::uint64_t position, std::uint64_t bytes) const;

  /// Marks them as arrived. Only for segments for which has() returned false; may be repeated.
  void add(std::uint64_t position, std::uint64_t bytes) noexcept;

  /// No further bytes arrive: frees the memory. From now on has() throws for everything after end().
  void finish() noexcept { words_ = std::vector<std::uint64_t>(); }

 private:
  std::uint64_t& word_of(std::uint64_t unit) noexcept { return words_[(unit / 64) & (words_.size() - 1)]; }

  std::uint64_t end_ = 0;
  std::vector<std::uint64_t> words_;  // of units from end_ on; all others are zero
};

/// The receiving half of channel 0 of a link over several rails: puts control messages in order from segments that
/// arrive in any order. On the loop.
class ControlReader {
 public:
  using Take = std::function<void(const Prefix& prefix, std::span<const std::byte> body)>;

  /// `take` is called with each message, of type kControl, kClose or kBye and of a valid length. Throws
  /// Error(kUnavailable) when out of memory.
  explicit ControlReader(Take take);

  /// Returns the place for the segment's bytes, or nullptr to drop them. Throws Error(kProtocol) for bytes beyond the
  /// window.
  std::byte* begin(std::uint64_t position, std::uint32_t bytes);

  /// The segment is complete. Throws Error(kProtocol) for an invalid message.
  void finish(std::uint64_t position, std::uint32_t bytes);

  /// The bytes consumed so far: credit for the peer.
  std::uint64_t released() const noexcept { return released_; }

  /// Returns whether enough was released since the last credit that the peer should get more.
  bool owes_credit() noexcept;

 private:
  bool take_front();

  const Take take_;
  MappedRing ring_;
  SegmentMap map_{kControlWindow};
  std::uint64_t released_ = 0;
  std::uint64_t reported_ = 0;
};

}  // namespace atl::transport::tcp
