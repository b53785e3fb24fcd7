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

/// The time that a robot still needs alone at every step of its program of a plan, and so how long it may follow
/// the program and still finish alone in time. Pure.
///
/// Where the program waits, and at every 16th computing step, the time comes from a backward pass over the operators,
/// like rest_of. Between these, the steps that are not done are added, which never gives less. 600 operators take about
/// 10 ms if the robot computes in all of them, and 0.1 ms if it computes in none.
class Guard {
 public:
  /// `lowered` is operator_graph(graph, operators, ...) with the robot's costs. Keeps no reference to the arguments.
  Guard(const Graph& graph, const Operators& operators, const plan::OperatorGraph& lowered, const Program& robot);

  /// Seconds of rest_of() after `steps_done` steps, or a little more.
  double rest_seconds(std::size_t steps_done) const { return rest_.at(steps_done); }
  /// Seconds of the step's computing.
  double step_seconds(std::size_t step) const { return step_.at(step); }
  /// The latest time, in seconds from the beginning, at which step `step` may start or still wait, so that the rest can
  /// be finished `margin` before `deadline`. Negative if it is too late already. `whole`: the seconds in which an
  /// engine of the robot computes the outputs from the inputs, which counts if it is quicker.
  double latest_start(double deadline, std::size_t step, double margin,
                      double whole = std::numeric_limits<double>::infinity()) const;

 private:
  std::vector<double> step_;
  std::vector<double> rest_;  // one more than steps
};

/// Estimates how much longer than predicted computing takes on this device. Pure: each call passes the time, in seconds
/// of any monotonic clock. A measurement counts for 1 / e after half a minute, besides a prior: so one slow inference
/// is forgotten after a minute or two, whether others follow or not.
class Jitter {
 public:
  void add(double now, double predicted, double took);
  /// The 95th percentile of the seconds by which computing exceeds `predicted`, at least half a millisecond. Without
  /// measurements a tenth of the prediction, a prior that counts less the more measurements there are.
  double margin(double now, double predicted) const;
  /// The median of took / predicted; 1 without measurements.
  double ratio(double now) const;

 private:
  struct Seen {
    double when = 0;
    double ratio = 1;
  };
  double quantile(double now, double share, double unknown) const;
  std::deque<Seen> seen_;
};

/// When the robot starts to compute alone what the server has not answered yet.
enum class Hedge {
  kAlways,    ///< whenever it would wait
  kDeadline,  ///< as late as the deadline allows
  kNever,     ///< when the server is lost, or has not answered for long
};

/// Reads "always", "deadline" or "never". Throws Error(kInvalidArgument) for anything else.
Hedge hedge_of(const std::string& name);
const char* to_string(Hedge hedge) noexcept;

/// The seconds after which the robot must have its own answer: plan::guarded_deadline() for the time of the whole model
/// alone, `local` and its margin; 0 with kAlways. With kNever `patience`, after which the robot begins.
double guard_deadline(Hedge hedge, std::optional<double> deadline, double local, double margin, double patience);

}  // namespace atl::infer
