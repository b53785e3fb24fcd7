// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "atoll/infer/client/client.h"
#include "atoll/infer/engine/caller_check.h"
#include "atoll/infer/session/divisions.h"
#include "atoll/infer/session/turn_gate.h"

namespace atl::infer {

/// Why a server does not run a session's model.
struct Refusal {
  std::string text;
  /// It will not, as long as nobody changes the model, the key, the server or a release: it is asked again all the same.
  bool is_final = false;
};

/// What client and divisions know of that; none where the server runs the model, or may yet.
std::optional<Refusal> refusal_of(const Client& client, const Divisions& divisions);

/// Error(kRefused) for a refusal that is final.
void throw_if_final(const std::optional<Refusal>& refusal);

/// Whether the divisions can be used, at the deadline at the latest; false once `gate` is closed. Error(kRefused) as soon as
/// the refusal is final, and what `caller` throws.
bool wait_for_server(const Client& client, const Divisions& divisions, const TurnGate& gate, Deadline deadline,
                     CallerCheck caller);

}  // namespace atl::infer
