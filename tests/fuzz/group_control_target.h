// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "atoll/collectives/control_message.h"

namespace atl::fuzz {

/// Decodes a member's control message as a group does. Invalid bodies are ignored; the others are unchanged when they
/// are encoded again, and can be described.
inline void group_control(std::span<const std::byte> message) {
  using namespace collectives;  // NOLINT
  const auto type = control_type(message);
  if (!type) return;
  const auto body = message.subspan(1);
  std::vector<std::byte> again;
  if (*type == ControlType::kInquiry) {
    const auto inquiry = decode_inquiry(body);
    if (!inquiry) return;
    if (inquiry->call && describe(inquiry->call->signature, inquiry->call->count).empty()) std::abort();
    again = encode(0, *inquiry);
  } else if (*type == ControlType::kClock) {
    const auto clock = decode_clock(body);
    if (!clock) return;
    if (clock->asked_us < 0 || clock->answered_us < 0) std::abort();
    again = encode(0, *clock);
  } else if (*type == ControlType::kRefusal) {
    const auto refusal = decode_refusal(body);
    if (!refusal) return;
    if (refusal->why.size() > kMaxReport) std::abort();
    again = encode(0, *refusal);
  } else if (*type == ControlType::kWithdrawal) {
    const auto withdrawal = decode_withdrawal(body);
    if (!withdrawal) return;
    if (withdrawal->why.size() > kMaxReport) std::abort();
    again = encode(0, *withdrawal);
  } else if (*type == ControlType::kStepRequest || *type == ControlType::kStepGrant) {
    const auto step = decode_step(body);
    if (!step) return;
    again = encode(0, *type, *step);
  } else if (*type == ControlType::kError || *type == ControlType::kLeft) {
    const auto report = decode_report(body);
    if (!report) return;
    if (report->text.size() > kMaxReport) std::abort();
    again = encode(0, *type, *report);
  } else {
    return;  // roll calls have a target of their own
  }
  if (!std::equal(message.begin(), message.end(), again.begin() + kGroupIdBytes, again.end())) std::abort();
}

}  // namespace atl::fuzz
