// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"

namespace atl::plan {

enum class Lane { kRobot, kUp, kDown, kServer };

/// What a lane is busy with. Times are seconds from the moment the robot has the inputs; on the link without the
/// latency that follows.
struct Event {
  Lane lane = Lane::kRobot;
  int operator_index = 0;  ///< that is computed, or whose output is sent
  double begin = 0;
  double end = 0;
};

/// What one inference takes. The fields up to `rows_twice` mean what they mean in OperatorPlan.
struct Timeline {
  double seconds = 0;
  double robot_busy = 0;
  double server_busy = 0;
  double up_bytes = 0;
  double down_bytes = 0;
  double joules = 0;
  double rows_twice = 0;
  double link_busy = 0;                       ///< seconds, of both directions together
  std::vector<Event> events;                  ///< by lane in order of time
  std::vector<std::vector<Region>> received;  ///< by operator, the rows that the robot gets, in order
};

/// The link that one inference meets, whose rates may change with time.
struct Channel {
  /// When the last of some bytes is off the link that go onto it at `begin`, kUp or kDown, in seconds from the moment
  /// the robot has the inputs; infinite where that never happens. No earlier for more bytes or a later beginning.
  std::function<double(Lane way, double begin, double bytes)> end;
  double latency = 0;
  bool is_half_duplex = false;
};

/// A link whose rates stay. Error(kInvalidArgument) as check().
Channel steady(const LinkCost& link);

/// What the robot draws in `seconds`, of which it computes and its radio is busy as long as is said.
double joules(const RobotPower& power, double seconds, double robot_busy, double link_busy) noexcept;

/// One inference with these shares. Both machines run their operators one at a time in the graph's order. What a
/// side needs of a tensor and does not compute comes from the other in one message, of exactly the rows that lack;
/// so do outputs to the robot. Of a state it has one for each region of them. Messages queue in order of readiness, per
/// direction, or all together when the link is half duplex; the latency comes after the bytes and does not occupy the
/// link.
///
/// `chunks` > 1 sends inputs in that many messages of equally many rows, lowest rows first, without a pause. The
/// server's first operators, as long as each is computed row by row (Operand::needed) from inputs and from one
/// another alone, compute after each chunk what has become possible, each with its fixed cost again. The chunks and
/// the computing behind them are two machines that take the same jobs in one order, which ends at the largest over
/// k of "chunk k is there" plus "compute from chunk k on".
///
/// The graph must pass check(). Error(kInvalidArgument) for shares that are not one per operator, lie outside its
/// rows or take an input from the robot, for chunks below 1, and for rows that one side needs and nobody computes.
Timeline simulate(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks = 1);
/// The same over a link that changes. `seconds` are infinite where something that the robot waits for never arrives.
Timeline simulate(const OperatorGraph& graph, const Channel& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks = 1);

/// Fills in what the plan's shares and chunks are predicted to take.
void predict(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, OperatorPlan& plan);

}  // namespace atl::plan
