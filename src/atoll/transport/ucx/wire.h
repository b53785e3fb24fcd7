// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "atoll/transport/link.h"

// The messages between the two ends of a UCX link: active messages through UCX, and control messages on the stream
// beside it. Host byte order (little-endian on every supported machine).
namespace atl::transport::ucx {

/// Identifiers of active messages.
enum class MessageKind : std::uint8_t {
  kProbe = 1,  ///< without content: shows that UCX works in this direction
  kFrame,      ///< note: where the frame belongs; content: FrameHeader and payload
  kCredit,     ///< note: all bytes of the channel that the receiver has released so far
};
inline constexpr std::uint8_t kMessageKinds = 4;  ///< one more than the largest

/// Precedes every message. It names the channel itself, because UCX may deliver messages in another order than they
/// were sent: no message needs an earlier one to be understood. UCX accepts messages from anyone who can reach its
/// ports, so every message contains the receiver's secret, which was sent over the authenticated stream only.
struct Note {
  std::uint64_t secret = 0;
  std::uint64_t group = 0;
  std::uint32_t index = 0;
  std::uint8_t bell = 0;
  std::uint8_t window_log2 = 0;  ///< of the channel's sender
  std::uint16_t zero = 0;
  std::uint64_t position = 0;  ///< kFrame: bytes of earlier frames, each with its padding
};
static_assert(sizeof(Note) == 32 && std::is_trivially_copyable_v<Note>);

inline Note note_of(std::uint64_t secret, const ChannelId& id, std::uint64_t window_bytes,
                    std::uint64_t position) noexcept {
  return {secret,
          id.group,
          id.index,
          static_cast<std::uint8_t>(id.bell),
          static_cast<std::uint8_t>(std::countr_zero(window_bytes)),
          0,
          position};
}

inline ChannelId channel_of(const Note& note) noexcept {
  return {note.group, note.index, static_cast<Bell>(note.bell)};
}

/// First byte of every control message on the stream.
enum class ControlKind : std::uint8_t {
  kUser = 1,     ///< Link::send_control: the message follows
  kAfterFrames,  ///< Link::send_control_after_frames: the message follows
  kMark,         ///< a Note follows: the next kAfterFrames or kLeaving waits for this position of the channel
  kLeaving,      ///< the sender closes in good order, once this, and any kLeaving of the peer, is answered
  kAllReceived,  ///< the answer: all frames before kLeaving have arrived
};

/// The maximum number of unfinished messages of one end in UCX, and so of receives under way at the other end.
inline constexpr std::size_t kMaxTransfers = 256;

}  // namespace atl::transport::ucx
