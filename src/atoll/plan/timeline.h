// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/plan/operators.h"

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
  std::vector<Event> events;  ///< by lane in order of time
};

/// One inference with these shares. Both machines run their operators one at a time in the graph's order. What a
/// side needs of a tensor and does not compute comes from the other in one message, of exactly the rows that lack;
/// so do outputs to the robot. Messages queue in order of readiness, per direction, or all together when the link
/// is half duplex; the latency comes after the bytes and does not occupy the link.
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

/// Fills in what the plan's shares and chunks are predicted to take.
void predict(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, OperatorPlan& plan);

}  // namespace atl::plan
