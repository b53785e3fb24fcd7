// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// Returns the seconds after which a guard provides the robot's own answer, in replays and in sessions, if the whole
/// model takes `alone` there: the deadline, if the robot alone can meet it or misses it by at most a fifth: local
/// execution then begins immediately. If it misses it by more, local execution begins when the deadline has passed.
/// Without a deadline, returns twice `alone`, so that local execution begins when a robot without a server would have
/// answered.
double guarded_deadline(std::optional<double> deadline, double alone) noexcept;

/// The result of an inference that a guard watched. Times are seconds from its start.
struct Guarded {
  double seconds = 0;      ///< until the first answer
  bool is_local = false;   ///< local execution gave that answer
  double local_begin = 0;  ///< when local execution began; infinite: never
  double link_end = 0;     ///< when the link was released: on giving up, or with the answer
  double robot_busy = 0;   ///< for the plan and for local execution, until that stopped after an operator
};

/// Ensures that a plan's inference is answered by its deadline. Local execution begins at the latest time that still
/// meets it, given what the robot will have computed and received by then. For that, the plan's operators on the robot
/// stop after the current one, and none starts that would leave too little time. The server's answer still counts if
/// the plan leaves nothing to the robot; the first answer ends the inference, and local execution then stops after the
/// current operator. The deadline is adjusted by guarded_deadline().
class Guard {
 public:
  /// The graph must pass check() and the shares must be a plan of it (simulate()); both are borrowed.
  Guard(const OperatorGraph& graph, std::span<const Share> shares);

  /// `timeline` is what the plan does without a guard, over a link of that latency.
  Guarded watch(const Timeline& timeline, double latency, double deadline);

 private:
  struct Rest {
    std::vector<double> seconds;  // by operator, without those of no cost
    double total = 0;
  };
  struct Message {
    int operator_index;
    double arrival;
  };
  const Rest& rest(std::span<const Event> computed, std::span<const Message> received, const Timeline& timeline);

  const OperatorGraph& graph_;
  std::span<const Share> shares_;
  std::map<std::pair<std::size_t, std::vector<int>>, Rest> rests_;  // by completed operators, and what was received
};

}  // namespace atl::plan
