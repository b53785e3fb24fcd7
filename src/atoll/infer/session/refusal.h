// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "atoll/infer/client/client.h"
#include "atoll/infer/engine/caller_check.h"
#include "atoll/infer/session/planner.h"
#include "atoll/infer/session/turn_gate.h"

namespace atl::infer {

/// Why a server does not run a session's model.
struct Refusal {
  std::string text;
  /// It will not run it until the model, the key, the server or a release is changed. The session keeps retrying all
  /// the same.
  bool is_final = false;
};

/// The refusal that client or planner knows of; none if the server runs the model, or may still do so.
std::optional<Refusal> refusal_of(const Client& client, const Planner& planner);

/// Throws Error(kRefused) for a final refusal.
void throw_if_final(const std::optional<Refusal>& refusal);

/// Waits until plans can be used and returns true; false at the deadline, or once `gate` is closed. Throws
/// Error(kRefused) as soon as there is a final refusal, and what `caller` throws.
bool wait_for_server(const Client& client, const Planner& planner, const TurnGate& gate, Deadline deadline,
                     CallerCheck caller);

}  // namespace atl::infer
