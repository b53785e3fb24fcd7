// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/refusal.h"

#include <utility>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kRefusalPollPeriod{20};

}  // namespace

std::optional<Refusal> refusal_of(const Client& client, const Planner& planner) {
  if (const std::string why = planner.failure(); !why.empty())
    return Refusal{"the server cannot be used: " + why, true};
  LinkStatus status = client.status();
  if (status.refusal.empty()) return std::nullopt;
  return Refusal{std::move(status.refusal), status.is_final};
}

void throw_if_final(const std::optional<Refusal>& refusal) {
  if (refusal && refusal->is_final) throw Error(ErrorKind::kRefused, refusal->text);
}

bool wait_for_server(const Client& client, const Planner& planner, const TurnGate& gate, Deadline deadline,
                     CallerCheck caller) {
  for (;;) {
    if (planner.wait(deadline.earlier(Deadline::after(kRefusalPollPeriod)))) return true;
    if (gate.is_closed()) return false;
    throw_if_final(refusal_of(client, planner));
    if (deadline.expired()) return false;
    caller();
  }
}

}  // namespace atl::infer
