// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/roll_call_message.h"

#include <algorithm>

#include "atoll/core/bytes.h"

namespace atl::collectives {
namespace {

constexpr std::uint8_t kHasLast = 1;
constexpr std::uint8_t kLastDone = 2;

std::uint32_t to_wire(std::chrono::milliseconds duration) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(duration.count(), 0, UINT32_MAX));
}

}  // namespace

void encode(const RollCallMessage& message, std::vector<std::byte>& out) {
  ByteWriter writer(out);
  const std::size_t count = std::min(message.ranks.size(), kMaxRollCallRanks);
  writer.integer(static_cast<std::uint8_t>(message.wants_reply ? 1 : 0));
  writer.integer(message.sequence);
  writer.integer(static_cast<std::uint16_t>(count));
  for (const RankProgress& one : std::span(message.ranks).first(count)) {
    writer.integer(static_cast<std::uint32_t>(one.rank));
    writer.integer(static_cast<std::uint8_t>(one.stage));
    writer.integer(static_cast<std::uint8_t>((one.has_last ? kHasLast : 0) | (one.last_done ? kLastDone : 0)));
    writer.integer(static_cast<std::uint8_t>(one.last));
    writer.integer(one.last_sequence);
    writer.integer(to_wire(one.since));
    writer.integer(to_wire(one.reported));
  }
}

std::optional<RollCallMessage> decode_roll_call(std::span<const std::byte> bytes) {
  try {
    ByteReader reader(bytes, "a roll call");
    RollCallMessage message;
    const auto wants_reply = reader.integer<std::uint8_t>();
    message.sequence = reader.integer<std::uint64_t>();
    const auto count = reader.integer<std::uint16_t>();
    if (wants_reply > 1 || count > kMaxRollCallRanks) return std::nullopt;
    message.wants_reply = wants_reply == 1;
    for (std::uint16_t i = 0; i < count; ++i) {
      RankProgress one;
      const auto rank = reader.integer<std::uint32_t>();
      const auto stage = reader.integer<std::uint8_t>();
      const auto flags = reader.integer<std::uint8_t>();
      const auto last = reader.integer<std::uint8_t>();
      if (rank > INT32_MAX || stage > static_cast<std::uint8_t>(Stage::kDone) || flags > (kHasLast | kLastDone) ||
          last > static_cast<std::uint8_t>(Operation::kReceive)) {
        return std::nullopt;
      }
      one.rank = static_cast<std::int32_t>(rank);
      one.stage = static_cast<Stage>(stage);
      one.has_last = (flags & kHasLast) != 0;
      one.last_done = (flags & kLastDone) != 0;
      one.last = static_cast<Operation>(last);
      one.last_sequence = reader.integer<std::uint64_t>();
      one.since = std::chrono::milliseconds(reader.integer<std::uint32_t>());
      one.reported = std::chrono::milliseconds(reader.integer<std::uint32_t>());
      message.ranks.push_back(one);
    }
    reader.expect_end();
    return message;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace atl::collectives
