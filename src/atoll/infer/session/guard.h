// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "atoll/infer/run/program.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// What a robot still has to compute alone, at every step of its program of a division: until when it may go on with the
/// program and yet finish alone in time. Pure.
///
/// Where the program waits, and at every 16th step that computes, a pass backwards over the operators tells, as rest_of goes;
/// between those the steps that are not done add up, which is never less. 600 operators take about 10 ms when the robot
/// computes in all of them, and 0.1 ms when it computes in none.
class Guard {
 public:
  /// `lowered` is operator_graph(graph, operators, ...) with the robot's costs. Nothing is kept of the arguments.
  Guard(const Graph& graph, const Operators& operators, const plan::OperatorGraph& lowered, const Program& robot);

  std::size_t steps() const noexcept { return step_.size(); }
  /// Seconds of rest_of() after so many steps, or a little more.
  double rest_seconds(std::size_t steps_done) const { return rest_.at(steps_done); }
  /// Seconds that the step computes.
  double step_seconds(std::size_t step) const { return step_.at(step); }
  /// Seconds of all that the program computes.
  double program_seconds() const;
  /// The seconds from the beginning at which step `step` may begin, or go on waiting, at the latest, so that the rest that
  /// would then be left ends by `deadline`, `margin` before it. May be negative: it is too late already. `whole`: seconds
  /// in which an engine of the robot answers from the inputs, if that is quicker.
  double latest_start(double deadline, std::size_t step, double margin,
                      double whole = std::numeric_limits<double>::infinity()) const;

 private:
  std::vector<double> step_;
  std::vector<double> rest_;  // one more than steps
};

/// How much longer than predicted computing takes on this device. Pure: seconds of any clock that does not go back come with each
/// call. What was seen counts for 1 / e after half a minute, beside what is assumed before anything is known: so one slow
/// inference is forgotten after a minute or two, whether others follow or not.
class Jitter {
 public:
  void add(double now, double predicted, double took);
  /// Seconds that what is predicted to take so long takes more, in 95 of 100 cases of the last ones; at least half a
  /// millisecond, and a tenth of the prediction before anything is known, which is believed the less the more is known.
  double margin(double now, double predicted) const;
  /// The median of took / predicted; 1 before anything is known.
  double ratio(double now) const;

 private:
  struct Seen {
    double when = 0;
    double ratio = 1;
  };
  double quantile(double now, double share, double unknown) const;
  std::deque<Seen> seen_;
};

/// When the robot computes alone what the server has not answered yet.
enum class Hedge {
  kAlways,    ///< whenever it would wait
  kDeadline,  ///< as late as the deadline allows
  kNever,     ///< when the server is lost, or has been silent for long
};

/// "always", "deadline", "never"; Error(kInvalidArgument) for anything else.
Hedge hedge_of(const std::string& name);
const char* to_string(Hedge hedge) noexcept;

/// The seconds at which the robot's own answer must be there, as plan::guarded_deadline() says of what the whole model takes
/// alone, `local` and its margin; with kAlways 0. With kNever `patience`, at which it begins.
double guard_deadline(Hedge hedge, std::optional<double> deadline, double local, double margin, double patience);

}  // namespace atl::infer
