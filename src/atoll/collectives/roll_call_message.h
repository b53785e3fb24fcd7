// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atoll/collectives/types.h"

namespace atl::collectives {

/// How far a rank has come towards a collective.
enum class Stage : std::uint8_t {
  kAway,    ///< it has not called it
  kQueued,  ///< it has called it, and is not done with an earlier one
  kInput,   ///< it has called it; the input is still on its way from a device or from the other ranks of its island
  kInside,  ///< it takes part
  kDone,    ///< its part is done
};

/// Where one rank is. Times are differences, so that clocks need not agree.
struct Whereabouts {
  std::int32_t rank = 0;
  Stage stage = Stage::kAway;
  bool has_last = false;   ///< away or queued: there is an operation before it, namely
  bool last_done = false;  ///< whether that is done
  Operation last = Operation::kBarrier;
  std::uint64_t last_sequence = 0;
  std::chrono::milliseconds since{0};  ///< ago: it came to this stage; away: it called or was done with the last one
  std::chrono::milliseconds said{0};   ///< ago: the rank itself said so
};

/// What the members of a group tell each other about the collective `sequence` while some of them wait in it.
struct RollCallMessage {
  bool asks = false;  ///< an answer is wanted
  std::uint64_t sequence = 0;
  std::vector<Whereabouts> ranks;  ///< the sender first; at most kMaxWhereabouts
};

inline constexpr std::size_t kMaxWhereabouts = 128;

/// Appends the message to `out`.
void encode(const RollCallMessage& message, std::vector<std::byte>& out);

/// Nothing where the bytes are no such message.
std::optional<RollCallMessage> decode_roll_call(std::span<const std::byte> bytes);

}  // namespace atl::collectives
