// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace atl::plan {

/// What a server reports to one session about the others, and what the session has measured itself.
struct ServerLoad {
  int turns = 1;            ///< models that compute at once
  double computing = 0;     ///< mean number of others that compute at a time, up to `turns`
  double waiting = 0;       ///< mean number of others that wait for a turn
  double turn_seconds = 0;  ///< mean seconds that one of them computes in a turn
  double messages = 0;      ///< mean number of others' messages on the radio; 0 if it is not shared
  int sessions = 0;         ///< others that may change their plans
  /// Mean seconds that the session's last inferences waited for turns, if it used the server.
  std::optional<double> waited = {};
};

/// Returns the expected wait in seconds for one turn: the remaining time of the current turns, as seen at a random
/// moment, and of the requests before it in the queue; averaged with the wait measured lately, if known. To be added to
/// the time of a plan that uses the server. Throws Error(kInvalidArgument) for amounts that are negative or infinite,
/// and turns below 1.
double expected_wait(const ServerLoad& load);

/// Returns the factor by which sharing the radio fairly slows the session's messages.
double expected_stretch(const ServerLoad& load);

/// Chooses the next plan of a session that knows only its own predictions. It changes only for a gain, and only with
/// the probability 1 / (others + 1), so that equal sessions do not all move at once. In a congestion game any sequence
/// of improvements, one at a time, ends (Rosenthal, "A class of games possessing pure-strategy Nash equilibria", 1973).
class PlanChooser {
 public:
  /// `gain` is the share of the time that a change must save. Choosers with different seeds move independently. Throws
  /// Error(kInvalidArgument) for a gain outside [0, 1).
  explicit PlanChooser(std::uint64_t seed, double gain = 0.05);

  /// `seconds` are by plan, with the expected waits; `current` is one of the plans.
  std::size_t choose(std::size_t current, std::span<const double> seconds, int others);

 private:
  std::uint64_t seed_;
  double gain_;
  std::int64_t decisions_ = 0;
};

}  // namespace atl::plan
