// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace atl::transport {

/// Where a frame's payload is.
enum class Payload : std::uint8_t {
  kHere = 0,       ///< after the header
  kLent = 1,       ///< in the sender's arena, for reading
  kForResult = 2,  ///< there, and the receiver may replace it by the result (Channel::begin_write)
  kThere = 3,      ///< in the receiver's memory already, which it lent for the result
};

/// Precedes every payload on a channel, in host byte order (little-endian on every supported machine).
/// The transport reads `payload_bytes` and nothing else; the layer above fills the rest, and the receiver compares it
/// with what it expects, so that ranks that disagree detect it at the first frame.
struct alignas(64) FrameHeader {
  std::uint32_t payload_bytes = 0;
  std::uint8_t kind = 0;       ///< meaning is the upper layer's (collective data, eager message, announce, grant, ...)
  std::uint8_t operation = 0;  ///< collectives::Operation
  std::uint8_t dtype = 0;      ///< collectives::DataType
  std::uint8_t reduce_op = 0;  ///< collectives::ReduceOp
  std::uint32_t attempt = 0;   ///< restart attempt of the job
  std::int32_t root = 0;       ///< root rank, or -1
  std::uint64_t sequence = 0;  ///< number of the operation in its group
  std::uint64_t count = 0;     ///< elements of the whole operation on the sender
  std::uint64_t offset = 0;    ///< position of this payload inside the message, bytes
  std::uint64_t tag = 0;       ///< point-to-point tag or message id; of a collective the checksum of the last result
  std::uint64_t checksum = 0;  ///< of the payload; 0: none
  Payload where = Payload::kHere;
  std::uint8_t zero[7] = {};
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);

/// A received frame, valid until Channel::pop. The payload is contiguous and may be read but not written. It is 64-byte
/// aligned unless it was lent (Channel::try_lend).
struct Frame {
  FrameHeader header;  ///< a private copy, which the peer cannot change after the check
  std::span<const std::byte> payload;
};

// The window of one direction of a channel is a ring in which each frame is contiguous, its header and its payload
// padded to 64 bytes each. Positions count bytes from the beginning and never wrap (at 1 TB/s for half a year).

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

/// Views the bytes of a plain structure.
template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

/// Reads the structure at the start of `bytes`, which must be long enough.
template <class T>
T read_as(std::span<const std::byte> bytes) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace atl::transport
