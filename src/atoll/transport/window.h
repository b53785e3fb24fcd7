// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "atoll/transport/frame.h"

// The window of one direction of a channel: a ring in which each frame is contiguous, its header and its payload padded
// to 64 bytes each. Positions count bytes from the beginning and never wrap (at 1 TB/s for half a year).
namespace atl::transport {

inline constexpr std::size_t kMinWindowBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxWindowBytes = std::size_t{1} << 30;

/// Returns whether a peer may request a window of this size.
constexpr bool is_valid_window(std::uint64_t bytes) noexcept {
  return std::has_single_bit(bytes) && bytes >= kMinWindowBytes && bytes <= kMaxWindowBytes;
}

/// Returns the maximum size of one payload, so that several frames fit.
constexpr std::uint64_t max_payload_of(std::uint64_t window_bytes) noexcept { return window_bytes / 4; }

/// Returns the bytes of the window that a frame occupies.
constexpr std::uint64_t footprint(std::uint64_t payload_bytes) noexcept {
  return sizeof(FrameHeader) + (payload_bytes + 63) / 64 * 64;
}

/// Returns the same for a frame whose payload was lent.
constexpr std::uint64_t lent_footprint() noexcept { return 2 * sizeof(FrameHeader); }

/// Reads the frame at `at`, where a peer may still write: the header is read once, so that the size that the caller
/// checks next is the one that is used.
inline void read_frame(const std::byte* at, Frame& frame) noexcept {
  std::memcpy(&frame.header, at, sizeof frame.header);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not read it a second time
  frame.payload = {at + sizeof frame.header, frame.header.payload_bytes};
}

}  // namespace atl::transport
