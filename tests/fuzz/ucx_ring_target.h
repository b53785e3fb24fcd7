// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/wire.h"
#include "atoll/transport/ucx/rings.h"
#include "tests/fuzz/rails_target.h"

namespace atl::fuzz {

/// Frames that a peer writes into a channel's ring. Each is given by a choice, a position in units, a length, and its
/// header's first bytes.
inline void ucx_ring(std::span<const std::byte> bytes) {
  using namespace transport;
  Source source(bytes);
  ucx::ReceiveRing subject;
  try {
    subject.open_on_loop(kMinWindowBytes << (source.number(1) & 3U));
    while (!source.is_empty()) {
      const std::uint64_t choice = source.number(1);
      if ((choice & 1U) != 0) {
        const Frame* const frame = subject.front();
        if (frame == nullptr) continue;
        const std::vector<std::byte> copy(frame->payload.begin(), frame->payload.end());
        if (copy.size() != frame->header.payload_bytes) std::abort();
        subject.pop();
        continue;
      }
      if (choice == 254) subject.close_on_loop();
      const std::uint64_t position = source.number(3) * ((choice & 2U) != 0 ? 1 : sizeof(FrameHeader));
      const std::uint64_t length = source.number(3);
      std::byte* const to = subject.begin_on_loop(position, length);
      if (to == nullptr) continue;
      FrameHeader header{.payload_bytes = static_cast<std::uint32_t>(length - sizeof(FrameHeader))};
      if ((choice & 4U) != 0) header.payload_bytes = static_cast<std::uint32_t>(source.number(4));
      std::memcpy(to, &header, sizeof header);
      subject.finish_on_loop(position, length);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
  }
}

}  // namespace atl::fuzz
