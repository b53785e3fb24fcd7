// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/control_message.h"

#include <algorithm>
#include <type_traits>

#include "atoll/core/bytes.h"

namespace atl::collectives {
namespace {

// Later times are implausible, and arithmetic on them could overflow.
constexpr std::uint64_t kLatest = std::uint64_t{1} << 60;
constexpr std::uint8_t kHasLast = 1;
constexpr std::uint8_t kLastDone = 2;

// The layout of a body stands once, in fields(): it hands the fields in their order to a Writer, or to a Reader.

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : writer_(out) {}

  template <typename Integer>
  void integer(Integer value) {
    writer_.integer(static_cast<std::make_unsigned_t<Integer>>(value));
  }
  template <typename Enum>
  void enumerator(Enum value, Enum /*first*/, Enum /*last*/) {
    integer(static_cast<std::uint8_t>(value));
  }
  void flag(bool value) { integer(static_cast<std::uint8_t>(value)); }
  void duration(std::chrono::milliseconds value) {
    integer(static_cast<std::uint32_t>(std::clamp<std::int64_t>(value.count(), 0, UINT32_MAX)));
  }
  void rest(const std::string& text) { writer_.bytes(as_byte_span(std::string_view(text).substr(0, kMaxReport))); }
  void require(bool /*is_valid*/) {}

 private:
  ByteWriter writer_;
};

/// Throws Error(kProtocol) for bytes that no Writer makes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) : reader_(body, "a control message") {}

  template <typename Integer>
  void integer(Integer& value) {
    value = static_cast<Integer>(reader_.integer<std::make_unsigned_t<Integer>>());
  }
  template <typename Enum>
  void enumerator(Enum& value, Enum first, Enum last) {
    const auto found = reader_.integer<std::uint8_t>();
    require(found >= static_cast<int>(first) && found <= static_cast<int>(last));
    value = static_cast<Enum>(found);
  }
  void flag(bool& value) {
    const auto found = reader_.integer<std::uint8_t>();
    require(found <= 1);
    value = found == 1;
  }
  void duration(std::chrono::milliseconds& value) {
    value = std::chrono::milliseconds(reader_.integer<std::uint32_t>());
  }
  void rest(std::string& text) {
    require(reader_.left() <= kMaxReport);
    const auto bytes = reader_.bytes(reader_.left());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void require(bool is_valid) const {
    if (!is_valid) throw Error(ErrorKind::kProtocol, "invalid field");
  }
  void expect_end() const { reader_.expect_end(); }

 private:
  ByteReader reader_;
};

void fields(auto& codec, Report& report) {
  codec.enumerator(report.kind, ErrorKind::kInvalidArgument, ErrorKind::kInternal);
  codec.integer(report.rank);
  codec.rest(report.text);
}

void fields(auto& codec, RefusalMessage& refusal) {
  codec.integer(refusal.number);
  codec.integer(refusal.rank);
  codec.rest(refusal.why);
}

void fields(auto& codec, WithdrawalMessage& withdrawal) {
  codec.flag(withdrawal.sends);
  codec.integer(withdrawal.number);
  codec.rest(withdrawal.why);
}

void fields(auto& codec, LibraryStep& step) {
  codec.enumerator(step.kind, LibraryStep::Kind::kIn, LibraryStep::Kind::kMessage);
  codec.integer(step.sender);
  codec.integer(step.receiver);
  codec.integer(step.number);
}

void fields(auto& codec, IssuedCall& call) {
  codec.enumerator(call.signature.operation, Operation::kAllReduce, Operation::kReceive);
  codec.enumerator(call.signature.dtype, DataType::kFloat64, DataType::kComplex128);
  codec.enumerator(call.signature.reduce_op, ReduceOp::kSum, ReduceOp::kPremulSum);
  codec.integer(call.signature.root);
  codec.integer(call.signature.sequence);
  codec.integer(call.signature.attempt);
  codec.integer(call.count);
}

void fields(auto& codec, ClockMessage& message) {
  codec.flag(message.is_answer);
  for (std::int64_t* time_us : {&message.asked_us, &message.answered_us}) {
    codec.integer(*time_us);
    codec.require(static_cast<std::uint64_t>(*time_us) <= kLatest);
  }
}

void fields(auto& codec, RankProgress& one) {
  auto flags = static_cast<std::uint8_t>((one.has_last ? kHasLast : 0) | (one.last_done ? kLastDone : 0));
  codec.integer(one.rank);
  codec.enumerator(one.stage, Stage::kAway, Stage::kDone);
  codec.integer(flags);
  codec.enumerator(one.last, Operation::kAllReduce, Operation::kReceive);
  codec.integer(one.last_sequence);
  codec.duration(one.since);
  codec.duration(one.reported);
  codec.require(one.rank >= 0 && flags <= (kHasLast | kLastDone));
  one.has_last = (flags & kHasLast) != 0;
  one.last_done = (flags & kLastDone) != 0;
}

void fields(auto& codec, RollCallMessage& message) {
  auto count = static_cast<std::uint16_t>(std::min(message.ranks.size(), kMaxRollCallRanks));
  codec.flag(message.wants_reply);
  codec.integer(message.sequence);
  codec.integer(count);
  codec.require(count <= kMaxRollCallRanks);
  message.ranks.resize(count);
  for (RankProgress& one : message.ranks) fields(codec, one);
}

std::vector<std::byte> header_of(std::uint64_t group_id, ControlType type) {
  std::vector<std::byte> message;
  Writer writer(message);
  writer.integer(group_id);
  writer.integer(static_cast<std::uint8_t>(type));
  return message;
}

template <typename Body>
std::vector<std::byte> encoded(std::uint64_t group_id, ControlType type, Body body) {
  auto message = header_of(group_id, type);
  Writer writer(message);
  fields(writer, body);
  return message;
}

template <typename Body>
std::optional<Body> decoded(std::span<const std::byte> bytes) {
  try {
    Reader reader(bytes);
    Body body;
    fields(reader, body);
    reader.expect_end();
    return body;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<ControlType> control_type(std::span<const std::byte> message) {
  if (message.empty()) return std::nullopt;
  const auto type = static_cast<ControlType>(std::to_integer<std::uint8_t>(message.front()));
  if (type < ControlType::kError || type > ControlType::kStepGrant) return std::nullopt;
  return type;
}

std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const Report& report) {
  return encoded(group_id, type, report);
}

std::vector<std::byte> encode(std::uint64_t group_id, const RefusalMessage& refusal) {
  return encoded(group_id, ControlType::kRefusal, refusal);
}

std::vector<std::byte> encode(std::uint64_t group_id, const WithdrawalMessage& withdrawal) {
  return encoded(group_id, ControlType::kWithdrawal, withdrawal);
}

std::vector<std::byte> encode(std::uint64_t group_id, ControlType type, const LibraryStep& step) {
  return encoded(group_id, type, step);
}

std::vector<std::byte> encode(std::uint64_t group_id, const Inquiry& inquiry) {
  if (!inquiry.call) return header_of(group_id, ControlType::kInquiry);
  return encoded(group_id, ControlType::kInquiry, *inquiry.call);
}

std::vector<std::byte> encode(std::uint64_t group_id, const ClockMessage& message) {
  return encoded(group_id, ControlType::kClock, message);
}

std::vector<std::byte> encode(std::uint64_t group_id, const RollCallMessage& message) {
  return encoded(group_id, ControlType::kRollCall, message);
}

std::optional<Report> decode_report(std::span<const std::byte> body) { return decoded<Report>(body); }
std::optional<RefusalMessage> decode_refusal(std::span<const std::byte> body) { return decoded<RefusalMessage>(body); }
std::optional<WithdrawalMessage> decode_withdrawal(std::span<const std::byte> body) {
  return decoded<WithdrawalMessage>(body);
}
std::optional<LibraryStep> decode_step(std::span<const std::byte> body) { return decoded<LibraryStep>(body); }
std::optional<ClockMessage> decode_clock(std::span<const std::byte> body) { return decoded<ClockMessage>(body); }
std::optional<RollCallMessage> decode_roll_call(std::span<const std::byte> body) {
  return decoded<RollCallMessage>(body);
}

std::optional<Inquiry> decode_inquiry(std::span<const std::byte> body) {
  if (body.empty()) return Inquiry{};
  const auto call = decoded<IssuedCall>(body);
  return call ? std::optional(Inquiry{call}) : std::nullopt;
}

}  // namespace atl::collectives
