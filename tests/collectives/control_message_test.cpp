// SPDX-License-Identifier: Apache-2.0
// Control messages of a group: they are decoded as they were encoded, and invalid bytes are ignored.
#include "atoll/collectives/control_message.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/fuzz/group_control_target.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

std::span<const std::byte> body_of(const std::vector<std::byte>& message) {
  return std::span(message).subspan(kGroupIdBytes);
}

const IssuedCall kCall{{Operation::kBroadcast, DataType::kBFloat16, ReduceOp::kMax, 3, 812, 2}, 1'000'000'007};

std::vector<std::vector<std::byte>> samples() {
  return {encode(7, ControlType::kError, Report{ErrorKind::kPeerLost, 2, "rank 1 has gone"}),
          encode(7, ControlType::kLeft, Report{ErrorKind::kAborted, -1, ""}),
          encode(7, Inquiry{}),
          encode(7, Inquiry{kCall}),
          encode(7, ClockMessage{true, 1'700'000'000'000'000, 1}),
          encode(7, RefusalMessage{812, 3, "no such tensor"}),
          encode(7, WithdrawalMessage{true, 4, "no such tensor"}),
          encode(7, ControlType::kStepRequest, LibraryStep{LibraryStep::Kind::kMessage, 2, 0, 9}),
          encode(7, ControlType::kStepGrant, LibraryStep{LibraryStep::Kind::kIn, -1, -1, 812})};
}

TEST(ControlMessage, ComesAsItWasSaid) {
  const auto all = samples();
  const auto body = [&](std::size_t i) { return body_of(all[i]).subspan(1); };
  EXPECT_EQ(control_type(body_of(all[0])), ControlType::kError);
  const auto report = decode_report(body(0));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, ErrorKind::kPeerLost);
  EXPECT_EQ(report->rank, 2);
  EXPECT_EQ(report->text, "rank 1 has gone");
  EXPECT_EQ(decode_report(body(1))->rank, -1);
  EXPECT_FALSE(decode_inquiry(body(2))->call);
  EXPECT_EQ(decode_inquiry(body(3))->call, kCall);
  const auto clock = decode_clock(body(4));
  ASSERT_TRUE(clock);
  EXPECT_TRUE(clock->is_answer);
  EXPECT_EQ(clock->asked_us, 1'700'000'000'000'000);
  EXPECT_EQ(clock->answered_us, 1);
  const auto refusal = decode_refusal(body(5));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->number, 812u);
  EXPECT_EQ(refusal->rank, 3);
  EXPECT_EQ(refusal->why, "no such tensor");
  const auto withdrawal = decode_withdrawal(body(6));
  ASSERT_TRUE(withdrawal);
  EXPECT_TRUE(withdrawal->sends);
  EXPECT_EQ(withdrawal->number, 4u);
  EXPECT_EQ(withdrawal->why, "no such tensor");
  EXPECT_EQ(decode_step(body(7)), (LibraryStep{LibraryStep::Kind::kMessage, 2, 0, 9}));
  EXPECT_EQ(decode_step(body(8)), (LibraryStep{LibraryStep::Kind::kIn, -1, -1, 812}));
}

TEST(ControlMessage, ALongReportIsCut) {
  const auto message = encode(7, ControlType::kError, Report{ErrorKind::kTimeout, 0, std::string(5000, 'x')});
  EXPECT_EQ(decode_report(body_of(message).subspan(1))->text, std::string(kMaxReport, 'x'));
}

TEST(ControlMessage, WhatIsNoneIsPassedOver) {
  EXPECT_FALSE(control_type({}));
  for (const std::uint8_t type : {0, 10, 255}) EXPECT_FALSE(control_type(std::as_bytes(std::span(&type, 1))));
  auto inquiry = encode(7, Inquiry{kCall});
  inquiry[kGroupIdBytes + 1] = std::byte{11};  // beyond the last operation
  EXPECT_FALSE(decode_inquiry(body_of(inquiry).subspan(1)));
  auto report = encode(7, ControlType::kError, Report{ErrorKind::kInternal, 0, ""});
  report[kGroupIdBytes + 1] = std::byte{200};
  EXPECT_FALSE(decode_report(body_of(report).subspan(1)));
  EXPECT_FALSE(decode_clock(body_of(encode(7, ClockMessage{true, -1, 0})).subspan(1)));
}

TEST(ControlMessage, MutatedBytes) {
  std::mt19937 random(20261124);  // NOLINT
  for (const auto& whole : samples()) {
    for (int i = 0; i < 5000; ++i) {
      auto bytes = whole;
      for (int change = 0; change < 1 + i % 3; ++change)
        bytes[kGroupIdBytes + random() % (bytes.size() - kGroupIdBytes)] = std::byte(random() & 0xff);
      bytes.resize(kGroupIdBytes + random() % (bytes.size() - kGroupIdBytes + 1));
      fuzz::group_control(body_of(bytes));
      bytes.push_back(std::byte(random() & 0xff));
      fuzz::group_control(body_of(bytes));
    }
    fuzz::group_control(body_of(whole));
  }
}

}  // namespace
}  // namespace atl::test
