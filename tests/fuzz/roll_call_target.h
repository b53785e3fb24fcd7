// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "atoll/collectives/control_message.h"

namespace atl::fuzz {

/// Decodes another rank's roll call. Invalid bytes are ignored; valid messages are unchanged when they are encoded
/// again.
inline void roll_call(std::span<const std::byte> bytes) {
  const auto message = collectives::decode_roll_call(bytes);
  if (!message) return;
  if (message->ranks.size() > collectives::kMaxRollCallRanks) std::abort();
  for (const auto& one : message->ranks) {
    if (one.rank < 0 || one.since.count() < 0 || one.reported.count() < 0) std::abort();
  }
  const std::vector<std::byte> again = collectives::encode(0, *message);
  const auto body = std::span(again).subspan(collectives::kGroupIdBytes + 1);
  if (!std::equal(bytes.begin(), bytes.end(), body.begin(), body.end())) std::abort();
}

}  // namespace atl::fuzz
