// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "atoll/transport/mapped_ring.h"
#include "atoll/transport/tcp/segment_map.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

/// The receiving half of channel 0 of a link over several rails: control messages, in order, out of segments in any order. The loop's.
class ControlReader {
 public:
  using Take = std::function<void(const Prefix& prefix, std::span<const std::byte> body)>;

  /// `take` gets each message, of type kControl, kClose or kBye and of a length that fits. Throws Error(kUnavailable) when there is no memory.
  explicit ControlReader(Take take);

  /// Where the segment's bytes go; nullptr to drop them. Throws Error(kProtocol) for what does not fit the window.
  std::byte* begin(std::uint64_t position, std::uint32_t bytes);

  /// They have come. Throws Error(kProtocol) for what is no message.
  void finish(std::uint64_t position, std::uint32_t bytes);

  /// Bytes that are done with: credit for the peer.
  std::uint64_t released() const noexcept { return released_; }

  /// Whether so much was released since the last time that the peer is to be told.
  bool owes_credit() noexcept;

 private:
  bool take_front();

  const Take take_;
  MappedRing ring_;
  SegmentMap map_{kControlWindow};
  std::uint64_t released_ = 0;
  std::uint64_t told_ = 0;
};

}  // namespace atl::transport::tcp
