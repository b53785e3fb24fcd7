// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "atoll/transport/link.h"

// What the two ends of a UCX link tell each other: active messages through UCX, and control messages on the stream
// beside it. Host byte order (little-endian on every supported machine).
namespace atl::transport::ucx {

/// Identifiers of active messages.
enum class MessageKind : std::uint8_t {
  kProbe = 1,  ///< without content: UCX does carry something from there to here
  kFrame,      ///< note: where the frame belongs; content: FrameHeader and payload
  kCredit,     ///< note: all bytes of the channel that the receiver has released so far
};
inline constexpr std::uint8_t kMessageKinds = 4;  ///< one more than the largest

/// In front of every message. It names the channel itself, because UCX may bring messages in another order than they were
/// sent: no message needs an earlier one to be understood. UCX lets anybody in who finds its ports, so that every message
/// shows the receiver's secret, which only the authenticated stream has told.
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
  kUser = 1,  ///< Link::send_control: the message follows
  kBehind,    ///< Link::send_control_behind_frames: the message follows
  kMark,      ///< a Note follows: what comes next with kBehind or kLeaving waits for this position of the channel
  kLeaving,  ///< the sender closes in good order; it says goodbye when this is answered, and the peer's own, if it came
  kAllReceived,  ///< the answer: the frames before kLeaving have all come
};

/// Messages that one end may have given to UCX and not finished. The other end has as many receives under way at most.
inline constexpr std::size_t kMaxTransfers = 256;

}  // namespace atl::transport::ucx
