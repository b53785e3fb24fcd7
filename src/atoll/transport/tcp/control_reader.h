// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "atoll/transport/shared_memory.h"
#include "atoll/transport/tcp/segment_map.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

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
