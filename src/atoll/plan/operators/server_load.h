// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace atl::plan {

/// What a server reports to one session about the others, and what the session has measured itself.
struct ServerLoad {
  int turns = 1;            ///< models that compute at once
  double computing = 0;     ///< mean number of others that compute at a time, up to `turns`
  double waiting = 0;       ///< mean number of others that wait for a turn
  double turn_seconds = 0;  ///< mean seconds that one of them computes in a turn
  /// Mean seconds that the session's last inferences waited for turns, if it used the server.
  std::optional<double> waited = {};
};

/// Returns the expected wait in seconds for one turn: the remaining time of the current turns, as seen at a random
/// moment, and of the requests before it in the queue; averaged with the wait measured lately, if known. To be added to
/// the time of a plan that uses the server. Throws Error(kInvalidArgument) for amounts that are negative or infinite,
/// and turns below 1.
double expected_wait(const ServerLoad& load);

}  // namespace atl::plan
