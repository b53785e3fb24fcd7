// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "atoll/core/error.h"
#include "atoll/transport/frame.h"
#include "atoll/transport/link.h"

// The messages on the stream of a TCP link after the handshake, each a Prefix and its body, in host byte order
// (little-endian on every supported machine).
namespace atl::transport::tcp {

/// Throws Error(kProtocol), whose message is joined from the parts: the peer has broken the protocol.
template <class... Parts>
[[noreturn]] void bad_message(const Parts&... parts) {
  throw Error(ErrorKind::kProtocol, joined(parts...));
}

enum class Type : std::uint8_t {
  kData = 1,   ///< body: FrameHeader and payload; Prefix::length counts the payload alone
  kCredit,     ///< body: u64, all bytes of channel `channel` that the receiver has released so far
  kOpen,       ///< body: OpenBody; the sender's channel number `channel` is this channel from now on
  kClose,      ///< the sender's channel `channel` ends
  kControl,    ///< body: the message
  kHeartbeat,  ///< body: u64, the sender's options.heartbeat in milliseconds; sent first, then after silence
  kBye,        ///< the sender closes in good order and sends nothing more
  // On links over several rails, in place of kData; see docs/rails.md. There kOpen may be repeated, kControl, kClose
  // and kBye travel in segments of channel 0, and a credit may be older than the previous one.
  kSegment,  ///< body: u64, position in the channel's stream, then bytes of it; Prefix::length counts these bytes alone
  kAck,      ///< body: u64, how many bytes of this rail's stream the sender has read so far
  kProbe,    ///< body: bytes without meaning, perhaps none; acknowledged at once
};

struct Prefix {
  std::uint16_t magic = kMagic;
  Type type = Type::kHeartbeat;
  std::uint8_t zero = 0;
  std::uint32_t channel = 0;  ///< number given by the side that sends the channel's data
  std::uint32_t length = 0;   ///< bytes of the body, without the FrameHeader
  static constexpr std::uint16_t kMagic = 0x7ea1;
};
static_assert(sizeof(Prefix) == 12 && std::is_trivially_copyable_v<Prefix>);

struct OpenBody {
  std::uint64_t group = 0;
  std::uint32_t index = 0;
  std::uint32_t bell = 0;
  std::uint64_t window_bytes = 0;
};
static_assert(sizeof(OpenBody) == 24 && std::is_trivially_copyable_v<OpenBody>);

/// The limit of a control message's body: a user's message, and the header of a link that is built on this one.
inline constexpr std::size_t kMaxControlBody = kMaxControlBytes + 64;

inline constexpr std::size_t kUnit = 64;                                   ///< segments begin at multiples of it
inline constexpr std::size_t kMaxSegment = std::size_t{256} << 10;         ///< bytes
inline constexpr std::size_t kMaxProbe = std::size_t{64} << 10;            ///< bytes
inline constexpr std::uint64_t kControlWindow = std::uint64_t{512} << 10;  ///< of channel 0

/// Rounds up to a multiple of kUnit.
constexpr std::uint64_t whole_units(std::uint64_t bytes) noexcept { return (bytes + kUnit - 1) / kUnit * kUnit; }

/// Returns the bytes of a message's body that Prefix::length does not count.
constexpr std::size_t uncounted_bytes(Type type) noexcept {
  return type == Type::kData ? sizeof(FrameHeader) : type == Type::kSegment ? sizeof(std::uint64_t) : 0;
}

/// Returns the bytes on the stream of the message that begins with `prefix`.
constexpr std::size_t message_bytes(const Prefix& prefix) noexcept {
  return sizeof(Prefix) + uncounted_bytes(prefix.type) + prefix.length;
}

}  // namespace atl::transport::tcp
