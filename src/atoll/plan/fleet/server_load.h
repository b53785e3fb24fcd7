// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace atl::plan {

/// What a server tells one session about the others, and what the session has seen itself.
struct ServerLoad {
  int turns = 1;            ///< models that compute at once
  double computing = 0;     ///< others that compute at a time, mean; up to `turns`
  double waiting = 0;       ///< others that wait for a turn at a time, mean
  double turn_seconds = 0;  ///< for which one of them computes in a turn, mean
  double messages = 0;      ///< of others on the radio at a time, mean; 0 where they do not share it
  int sessions = 0;         ///< others that may change their plans
  /// Seconds that the session's last inferences waited for turns, mean, if it used the server.
  std::optional<double> waited = {};
};

/// The seconds that one turn will be waited for: what the turns at work still take, as if one were looked at at a
/// random moment, and those before it in the queue; the mean of that and of what was waited lately, where that is
/// known. To be added to the time of a plan that uses the server. Error(kInvalidArgument) for amounts that are negative
/// or infinite, and turns below 1.
double expected_wait(const ServerLoad& load);

/// By what factor the session's messages take longer than alone, on a radio whose time is divided fairly.
double expected_stretch(const ServerLoad& load);

/// Which plan one session uses next, when it knows only its own predictions. It changes for a gain only, and not
/// always, so that equal sessions do not all move at once: with the probability of 1 / (others + 1). In a game of
/// congestion any order of gains, one at a time, ends (Rosenthal, "A class of games possessing pure-strategy Nash
/// equilibria", 1973).
class PlanChooser {
 public:
  /// `gain` is the share of the time that a change must save. Choosers of different seeds move independently.
  /// Error(kInvalidArgument) for a gain outside [0, 1).
  explicit PlanChooser(std::uint64_t seed, double gain = 0.05);

  /// `seconds` by plan, with the waits that are expected; `current` is one of them.
  std::size_t choose(std::size_t current, std::span<const double> seconds, int others);

 private:
  std::uint64_t seed_;
  double gain_;
  std::int64_t decisions_ = 0;
};

}  // namespace atl::plan
