// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/collectives/describe.h"
#include "atoll/core/error.h"

// Control messages that the members of a group exchange outside its channels. A message is the group's id (8 bytes, by
// which the context finds the group), a type and a body, all little-endian. Invalid bodies are ignored: the decoders
// return nothing.
namespace atl::collectives {

inline constexpr std::size_t kGroupIdBytes = sizeof(std::uint64_t);

enum class ControlType : std::uint8_t {
  kError = 1,    ///< a report of the group's first error
  kLeft,         ///< a report that the sender takes no further part
  kInquiry,      ///< from a rank whose wait has stalled; answered with a report if there is one
  kRollCall,     ///< how far each rank has come in a collective; see roll_call.h
  kClock,        ///< a request for the time, or the reply
  kRefusal,      ///< a rank refuses one operation
  kWithdrawal,   ///< a rank refuses one message that the island's library was to carry
  kStepRequest,  ///< the sender is ready for a step of the island's library; see group/island_order.h
  kStepGrant,    ///< all ranks of the step are ready
};

/// Returns the type of `message`, the bytes after the group's id; nothing if the first byte is not a valid type.
std::optional<ControlType> control_type(std::span<const std::byte> message);

/// Body of kError and kLeft. At most kMaxReport characters are sent.
struct Report {
  ErrorKind kind = ErrorKind::kInternal;
  std::int32_t rank = -1;
  std::string text;
};
inline constexpr std::size_t kMaxReport = 2048;
std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const Report& report);
std::optional<Report> decode_report(std::span<const std::byte> body);

/// Body of kRefusal. At most kMaxReport characters are sent.
struct RefusalMessage {
  std::uint64_t number = 0;  ///< of the operation
  std::int32_t rank = -1;    ///< the rank that refused it
  std::string why;
};
std::vector<std::byte> encode(std::uint64_t group_id, const RefusalMessage& message);
std::optional<RefusalMessage> decode_refusal(std::span<const std::byte> body);

/// Body of kWithdrawal: the sender withdraws its own end of the `number`-th message to (or from) the receiver. At most
/// kMaxReport characters of `why` are sent.
struct WithdrawalMessage {
  bool sends = false;
  std::uint64_t number = 0;
  std::string why;
};
std::vector<std::byte> encode(std::uint64_t group_id, const WithdrawalMessage& message);
std::optional<WithdrawalMessage> decode_withdrawal(std::span<const std::byte> body);

/// Body of kStepRequest and kStepGrant.
std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const LibraryStep& step);
std::optional<LibraryStep> decode_step(std::span<const std::byte> body);

/// A collective of this sequence as one rank called it.
struct IssuedCall {
  Signature signature;
  std::uint64_t count = 0;  ///< elements, summed over all ranks' parts if every rank knows them
  bool operator==(const IssuedCall&) const = default;
};

/// Body of kInquiry: the operation that the sender waits in, if it is a collective.
struct Inquiry {
  std::optional<IssuedCall> call;
};
std::vector<std::byte> encode(std::uint64_t group_id, const Inquiry& inquiry);
std::optional<Inquiry> decode_inquiry(std::span<const std::byte> body);

/// Body of kClock. Wall-clock times in microseconds since 1970.
struct ClockMessage {
  bool is_answer = false;
  std::int64_t asked_us = 0;     ///< by the requester's clock
  std::int64_t answered_us = 0;  ///< by the responder's clock
};
std::vector<std::byte> encode(std::uint64_t group_id, const ClockMessage& message);
std::optional<ClockMessage> decode_clock(std::span<const std::byte> body);

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

/// Body of kRollCall: what the members send each other about the collective `sequence` while some of them wait in it.
struct RollCallMessage {
  bool wants_reply = false;  ///< the receiver is to reply
  std::uint64_t sequence = 0;
  std::vector<RankProgress> ranks;  ///< the sender first; at most kMaxRollCallRanks are sent
};
inline constexpr std::size_t kMaxRollCallRanks = 128;
std::vector<std::byte> encode(std::uint64_t group_id, const RollCallMessage& message);
std::optional<RollCallMessage> decode_roll_call(std::span<const std::byte> body);

}  // namespace atl::collectives
