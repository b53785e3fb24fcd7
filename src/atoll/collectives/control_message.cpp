// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/control_message.h"

#include <tuple>

#include "atoll/core/bytes.h"

namespace atl::collectives {
namespace {

// Later times are implausible, and arithmetic on them could overflow.
constexpr std::uint64_t kLatest = std::uint64_t{1} << 60;

auto fields(const IssuedCall& call) {
  const Signature& of = call.signature;
  return std::tuple(of.operation, of.dtype, of.reduce_op, of.root, of.sequence, of.attempt, call.count);
}

/// Reads a value of an enumeration that starts at 0; returns nothing if it is above `last`.
template <class Enum>
std::optional<Enum> enumerator(ByteReader& reader, int last) {
  const auto value = reader.integer<std::uint8_t>();
  if (value > last) return std::nullopt;
  return static_cast<Enum>(value);
}

/// Returns the result of `read` on the whole body; nothing if the body is too short or too long.
template <class Read>
auto whole(std::span<const std::byte> body, const Read& read) -> decltype(read(std::declval<ByteReader&>())) {
  try {
    ByteReader reader(body, "a control message");
    auto found = read(reader);
    if (found) reader.expect_end();
    return found;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string text_at_end(ByteReader& reader) {
  const auto text = reader.bytes(reader.left());
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

}  // namespace

bool IssuedCall::operator==(const IssuedCall& other) const noexcept { return fields(*this) == fields(other); }

std::vector<std::byte> begin_control(std::uint64_t group_id, ControlType type) {
  std::vector<std::byte> message;
  ByteWriter writer(message);
  writer.integer(group_id);
  writer.integer(static_cast<std::uint8_t>(type));
  return message;
}

std::optional<ControlType> control_type(std::span<const std::byte> message) {
  if (message.empty()) return std::nullopt;
  const auto type = static_cast<ControlType>(std::to_integer<std::uint8_t>(message.front()));
  if (type < ControlType::kError || type > ControlType::kStepGrant) return std::nullopt;
  return type;
}

std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const Report& report) {
  auto message = begin_control(group_id, type);
  ByteWriter writer(message);
  writer.integer(static_cast<std::uint8_t>(report.kind));
  writer.integer(static_cast<std::uint32_t>(report.rank));
  writer.bytes(as_byte_span(std::string_view(report.text).substr(0, kMaxReport)));
  return message;
}

std::optional<Report> decode_report(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<Report> {
    const auto kind = enumerator<ErrorKind>(reader, static_cast<int>(ErrorKind::kInternal));
    const auto rank = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    if (!kind || reader.left() > kMaxReport) return std::nullopt;
    const auto text = reader.bytes(reader.left());
    return Report{*kind, rank, std::string(reinterpret_cast<const char*>(text.data()), text.size())};
  });
}

std::vector<std::byte> encode(std::uint64_t group_id, const RefusalMessage& refusal) {
  auto message = begin_control(group_id, ControlType::kRefusal);
  ByteWriter writer(message);
  writer.integer(refusal.number);
  writer.integer(static_cast<std::uint32_t>(refusal.rank));
  writer.bytes(as_byte_span(std::string_view(refusal.why).substr(0, kMaxReport)));
  return message;
}

std::optional<RefusalMessage> decode_refusal(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<RefusalMessage> {
    RefusalMessage refusal;
    refusal.number = reader.integer<std::uint64_t>();
    refusal.rank = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    refusal.why = text_at_end(reader);
    if (refusal.why.size() > kMaxReport) return std::nullopt;
    return refusal;
  });
}

std::vector<std::byte> encode(std::uint64_t group_id, const WithdrawalMessage& withdrawal) {
  auto message = begin_control(group_id, ControlType::kWithdrawal);
  ByteWriter writer(message);
  writer.integer(static_cast<std::uint8_t>(withdrawal.sends));
  writer.integer(withdrawal.number);
  writer.bytes(as_byte_span(std::string_view(withdrawal.why).substr(0, kMaxReport)));
  return message;
}

std::optional<WithdrawalMessage> decode_withdrawal(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<WithdrawalMessage> {
    WithdrawalMessage withdrawal;
    const auto sends = reader.integer<std::uint8_t>();
    if (sends > 1) return std::nullopt;
    withdrawal.sends = sends == 1;
    withdrawal.number = reader.integer<std::uint64_t>();
    withdrawal.why = text_at_end(reader);
    if (withdrawal.why.size() > kMaxReport) return std::nullopt;
    return withdrawal;
  });
}

std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const LibraryStep& step) {
  auto message = begin_control(group_id, type);
  ByteWriter writer(message);
  writer.integer(static_cast<std::uint8_t>(step.kind));
  writer.integer(static_cast<std::uint32_t>(step.sender));
  writer.integer(static_cast<std::uint32_t>(step.receiver));
  writer.integer(step.number);
  return message;
}

std::optional<LibraryStep> decode_step(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<LibraryStep> {
    const auto kind = enumerator<LibraryStep::Kind>(reader, static_cast<int>(LibraryStep::Kind::kMessage));
    LibraryStep step;
    step.sender = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    step.receiver = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    step.number = reader.integer<std::uint64_t>();
    if (!kind || *kind < LibraryStep::Kind::kIn) return std::nullopt;
    step.kind = *kind;
    return step;
  });
}

std::vector<std::byte> encode(std::uint64_t group_id, const Inquiry& inquiry) {
  auto message = begin_control(group_id, ControlType::kInquiry);
  if (!inquiry.call) return message;
  const Signature& of = inquiry.call->signature;
  ByteWriter writer(message);
  writer.integer(static_cast<std::uint8_t>(of.operation));
  writer.integer(static_cast<std::uint8_t>(of.dtype));
  writer.integer(static_cast<std::uint8_t>(of.reduce_op));
  writer.integer(static_cast<std::uint32_t>(of.root));
  writer.integer(of.sequence);
  writer.integer(of.attempt);
  writer.integer(inquiry.call->count);
  return message;
}

std::optional<Inquiry> decode_inquiry(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<Inquiry> {
    if (reader.left() == 0) return Inquiry{};
    const auto operation = enumerator<Operation>(reader, static_cast<int>(Operation::kReceive));
    const auto dtype = enumerator<DataType>(reader, kDataTypeCount - 1);
    const auto reduce_op = enumerator<ReduceOp>(reader, kReduceOpCount - 1);
    if (!operation || !dtype || !reduce_op) return std::nullopt;
    IssuedCall call{{*operation, *dtype, *reduce_op}, 0};
    call.signature.root = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    call.signature.sequence = reader.integer<std::uint64_t>();
    call.signature.attempt = reader.integer<std::uint32_t>();
    call.count = reader.integer<std::uint64_t>();
    return Inquiry{call};
  });
}

std::vector<std::byte> encode(std::uint64_t group_id, const ClockMessage& message) {
  auto bytes = begin_control(group_id, ControlType::kClock);
  ByteWriter writer(bytes);
  writer.integer(static_cast<std::uint8_t>(message.is_answer ? 1 : 0));
  writer.integer(static_cast<std::uint64_t>(message.asked_us));
  writer.integer(static_cast<std::uint64_t>(message.answered_us));
  return bytes;
}

std::optional<ClockMessage> decode_clock(std::span<const std::byte> body) {
  return whole(body, [](ByteReader& reader) -> std::optional<ClockMessage> {
    const auto what = reader.integer<std::uint8_t>();
    const auto asked = reader.integer<std::uint64_t>();
    const auto answered = reader.integer<std::uint64_t>();
    if (what > 1 || asked > kLatest || answered > kLatest) return std::nullopt;
    return ClockMessage{what == 1, static_cast<std::int64_t>(asked), static_cast<std::int64_t>(answered)};
  });
}

}  // namespace atl::collectives
