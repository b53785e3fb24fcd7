// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/describe.h"
#include "atoll/collectives/library_step.h"
#include "atoll/core/error.h"

// What the members of a group tell each other outside its channels. A message is the group's id (8 bytes, for whoever hands
// messages to groups), a type, and a body, all little-endian. Bodies that are none are passed over: decode gives nothing.
namespace atl::collectives {

inline constexpr std::size_t kGroupIdBytes = sizeof(std::uint64_t);

enum class ControlType : std::uint8_t {
  kError = 1,    ///< a report of the group's first error
  kLeft,         ///< a report that the sender takes no further part
  kInquiry,      ///< from who waits in vain; answered with a report where there is one
  kRollCall,     ///< who is where in a collective; see roll_call_message.h
  kClock,        ///< a question for the time, or its answer
  kRefusal,      ///< a rank takes no part in one operation
  kWithdrawal,   ///< a rank takes no part in one message that the island's library was to carry
  kStepRequest,  ///< the sender is ready for a step of the island's library; see island_order.h
  kStepGrant,    ///< all ranks of the step are
};

/// The beginning of a message; its body is to be appended.
std::vector<std::byte> begin_control(std::uint64_t group_id, ControlType type);

/// Of the rest behind the group's id: its first byte, where that is a type.
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
  std::int32_t rank = -1;    ///< which refused it
  std::string why;
};
std::vector<std::byte> encode(std::uint64_t group_id, const RefusalMessage& message);
std::optional<RefusalMessage> decode_refusal(std::span<const std::byte> body);

/// Body of kWithdrawal: the sender's own end of the `number`-th message to (or from) the receiver. At most kMaxReport characters.
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

/// A collective of this sequence as one rank has called it.
struct IssuedCall {
  Signature signature;
  std::uint64_t count = 0;  ///< elements, over all ranks' parts where every rank knows that
  bool operator==(const IssuedCall& other) const noexcept;
};

/// Body of kInquiry: what the sender waits in, where that is a collective.
struct Inquiry {
  std::optional<IssuedCall> call;
};
std::vector<std::byte> encode(std::uint64_t group_id, const Inquiry& inquiry);
std::optional<Inquiry> decode_inquiry(std::span<const std::byte> body);

/// Body of kClock. Times of wall clocks in microseconds since 1970.
struct ClockMessage {
  bool is_answer = false;
  std::int64_t asked_us = 0;     ///< by the clock of who asked
  std::int64_t answered_us = 0;  ///< by that of who answered
};
std::vector<std::byte> encode(std::uint64_t group_id, const ClockMessage& message);
std::optional<ClockMessage> decode_clock(std::span<const std::byte> body);

}  // namespace atl::collectives
