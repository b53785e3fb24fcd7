// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"

namespace atl::plan {

enum class Lane { kRobot, kUp, kDown, kServer };

/// An interval in which a lane is busy. Times are seconds from the moment the robot has the inputs; on the link they
/// exclude the latency that follows.
struct Event {
  Lane lane = Lane::kRobot;
  int operator_index = 0;  ///< the operator that is computed, or whose output is sent
  double begin = 0;
  double end = 0;
};

/// The course of one inference.
struct Timeline : Prediction {
  double link_busy = 0;                       ///< seconds, of both directions together
  std::vector<Event> events;                  ///< by lane in order of time
  std::vector<std::vector<Region>> received;  ///< by operator, the rows that the robot receives, in order
};

/// The link as one inference sees it, whose rates may change with time.
struct Channel {
  /// Returns when the last of `bytes` leaves the link if they enter it at `begin`, in the direction kUp or kDown, in
  /// seconds from the moment the robot has the inputs; infinite if that never happens. Never earlier for more bytes or
  /// a later start.
  std::function<double(Lane way, double begin, double bytes)> end;
  double latency = 0;
  bool is_half_duplex = false;
};

/// Returns a link of constant rates. Throws as check().
Channel steady(const LinkCost& link);

/// Returns the joules that the robot draws in `seconds`, during which it computes for `robot_busy` and uses the radio
/// for `link_busy`.
double joules(const RobotPower& power, double seconds, double robot_busy, double link_busy) noexcept;

/// Simulates one inference with these shares. Both machines run their operators one at a time in the graph's order. The
/// rows of a tensor that a side needs and does not compute come from the other in one message with exactly those rows;
/// so do outputs to the robot. For a state, the message has one state per region. Messages queue in the order in which
/// they are ready, per direction, or all together if the link is half duplex; the latency comes after the bytes and
/// does not occupy the link.
///
/// `chunks` > 1 sends inputs in that many messages of equally many rows, lowest rows first, without a pause. After each
/// chunk the server computes what has become possible of its first operators, up to the first that is not computed row
/// by row (Operand::needed) from inputs and these operators alone, each with its fixed cost again. The chunks and the
/// computing after them are two machines that take the same jobs in one order, which ends at the largest over k of
/// "chunk k has arrived" plus "compute from chunk k on".
///
/// The graph must pass check(). Throws Error(kInvalidArgument) unless there is one share for each operator within its
/// rows, with inputs on the robot, for chunks below 1, and for rows that one side needs and neither computes.
Timeline simulate(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks = 1);
/// Simulates the same over a link that changes. `seconds` are infinite if something that the robot waits for never
/// arrives.
Timeline simulate(const OperatorGraph& graph, const Channel& link, const RobotPower& power,
                  std::span<const Share> shares, int chunks = 1);

/// Fills in the predicted result of the plan's shares and chunks.
void predict(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, OperatorPlan& plan);

}  // namespace atl::plan
