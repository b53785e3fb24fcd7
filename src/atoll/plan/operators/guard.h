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

/// The seconds by which a guard has the robot's own answer, in replays and in sessions, where the whole model takes `alone`
/// there: the deadline, where the robot alone can meet it, or misses it by a fifth at most: local execution then begins
/// at once. Where it misses it by more, local execution begins when the deadline has passed. Where a user gave none,
/// twice `alone`: local execution begins when a robot without a server would answer.
double guarded_deadline(std::optional<double> deadline, double alone) noexcept;

/// What became of an inference that a guard watched. Times are seconds from its beginning.
struct Guarded {
  double seconds = 0;      ///< until the first answer
  bool is_local = false;   ///< whose answer that is
  double local_begin = 0;  ///< when local execution began; infinite: it did not
  double link_end = 0;     ///< when the link was given up, or the answer was there
  double robot_busy = 0;   ///< for the plan and for local execution, until that stopped behind an operator
};

/// Sees to it that a plan's inference is answered by its deadline. Local execution begins at the latest time that still
/// meets it, counting on what the robot has computed and received until then. The plan's operators on the robot stop
/// for that behind the one at hand, and none begins that would leave too little time. The server's answer counts as
/// long as nothing of the plan is left to the robot, the first answer ends the inference, and local execution then
/// stops behind the operator at hand. The deadline is taken as guarded_deadline() says.
class Guard {
 public:
  /// The graph must pass check() and the shares must be a plan of it (simulate()); both are borrowed.
  Guard(const OperatorGraph& graph, std::span<const Share> shares);

  /// `timeline` is what the plan does when nobody stops it, over a link of that latency.
  Guarded watch(const Timeline& timeline, double latency, double deadline);

 private:
  struct Rest {
    std::vector<double> seconds;  // by operator, without those that cost nothing
    double total = 0;
  };
  struct Message {
    int operator_index;
    double arrival;
  };
  const Rest& rest(std::span<const Event> computed, std::span<const Message> received, const Timeline& timeline);

  const OperatorGraph& graph_;
  std::span<const Share> shares_;
  std::map<std::pair<std::size_t, std::vector<int>>, Rest> rests_;  // by operators that are over, and what was received
};

}  // namespace atl::plan
