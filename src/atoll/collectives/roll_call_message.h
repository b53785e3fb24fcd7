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
  kAway,    ///< it has not called the collective
  kQueued,  ///< it has called it and is still in an earlier one
  kInput,   ///< it has called it; the input is still on its way from a device or from the island's other ranks
  kInside,  ///< it is executing it
  kDone,    ///< it has finished its part
};

/// One rank's progress towards a collective. Times are durations, so that clocks need not agree.
struct RankProgress {
  std::int32_t rank = 0;
  Stage stage = Stage::kAway;
  bool has_last = false;   ///< away or queued: it called an operation before
  bool last_done = false;  ///< whether that one has finished
  Operation last = Operation::kBarrier;
  std::uint64_t last_sequence = 0;
  std::chrono::milliseconds since{0};     ///< how long ago it reached this stage; away: since its last operation
  std::chrono::milliseconds reported{0};  ///< how long ago the rank itself reported this
};

/// What the members of a group send each other about the collective `sequence` while some of them wait in it.
struct RollCallMessage {
  bool wants_reply = false;  ///< the receiver is to reply
  std::uint64_t sequence = 0;
  std::vector<RankProgress> ranks;  ///< the sender first; at most kMaxRollCallRanks
};

inline constexpr std::size_t kMaxRollCallRanks = 128;

/// Appends the message to `out`.
void encode(const RollCallMessage& message, std::vector<std::byte>& out);

/// Returns nothing if the bytes are not a valid message.
std::optional<RollCallMessage> decode_roll_call(std::span<const std::byte> bytes);

}  // namespace atl::collectives
