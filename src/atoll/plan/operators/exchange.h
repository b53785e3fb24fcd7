// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/operators.h"

// What the sides of one inference exchange: who needs which rows of whom, and what the server computes behind the
// chunks of an input. Predictions (timeline.h) and programs follow from the same answers.
namespace atl::plan {

/// What is left of `pieces` without `own`: separate regions in order, none of which touch.
std::vector<Region> without(const std::vector<Region>& pieces, Region own);
/// Of separate regions together.
std::int64_t rows_of(const std::vector<Region>& regions) noexcept;
/// Of these rows of the operator on the link: their share of its bytes, or one state for each region.
double message_bytes(const Operator& made, const std::vector<Region>& regions) noexcept;

inline Region made_by(const Share& share, Side side) noexcept {
  return side == Side::kRobot ? share.robot : share.server;
}

/// An operator that a side computes needs rows of an operand that this side does not compute.
struct Await {
  int user = 0;
  int operand = 0;  ///< of the user
  int producer = 0;
  bool operator==(const Await&) const = default;
};

/// What one side gets from the other.
struct Needs {
  std::vector<Await> awaits;               ///< by user, then by operand
  std::vector<std::vector<Region>> lacks;  ///< by producer: the rows, separate and in order
};

/// Of the robot and of the server, by Side; outputs are needed by the robot. The graph must pass check().
/// Error(kInvalidArgument) for shares that are not one per operator, lie outside its rows or take an input from the
/// robot, and for rows that one side needs and nobody computes.
std::array<Needs, 2> needs_of(const OperatorGraph& graph, std::span<const Share> shares);

struct OperatorRows {
  int index = 0;  ///< of the operator
  Region rows;
  bool operator==(const OperatorRows&) const = default;
};

/// One of the messages in which an input goes up.
struct Chunk {
  int input = 0;
  std::vector<Region> rows;            ///< that come with it
  std::int64_t behind = 0;             ///< rows that come with later chunks of this input
  std::vector<OperatorRows> possible;  ///< what the server can compute now and could not before, in order
};

struct Stream {
  std::vector<Chunk> chunks;   ///< in the order in which they go up
  std::vector<int> operators;  ///< what the server computes as chunks arrive; none: it waits for whole inputs
  int next = 0;                ///< the operator behind those
};

/// Inputs of which the server needs rows, in `chunks` messages each of equally many rows, lowest rows first. With more
/// than one, the server's first operators are computed behind them, as long as each is computed row by row
/// (Operand::needed) from inputs and from one another alone, and none is a state. `needs` are the server's.
/// Error(kInvalidArgument) for chunks below 1.
Stream stream_of(const OperatorGraph& graph, std::span<const Share> shares, const Needs& needs, int chunks);

}  // namespace atl::plan
