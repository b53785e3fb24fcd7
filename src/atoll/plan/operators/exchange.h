// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/operators.h"

// What the sides of one inference exchange: which rows each needs from the other, and what the server computes after
// each chunk of an input. Predictions (timeline.h) and programs both use these answers.
namespace atl::plan {

/// Returns `pieces` without `own`: separate regions in order that do not touch.
std::vector<Region> without(const std::vector<Region>& pieces, Region own);
/// Counts the rows of separate regions.
std::int64_t rows_of(const std::vector<Region>& regions) noexcept;
/// Returns the bytes of these rows of the operator on the link: their share of its bytes, or one state for each region.
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

/// What one side needs from the other.
struct Needs {
  std::vector<Await> awaits;               ///< by user, then by operand
  std::vector<std::vector<Region>> lacks;  ///< by producer: the rows, separate and in order
};

/// Returns the needs of the robot and of the server, indexed by Side; the robot needs the outputs. The graph must pass
/// check(). Throws Error(kInvalidArgument) unless there is one share for each operator within its rows, with inputs on
/// the robot, and for rows that one side needs and neither computes.
std::array<Needs, 2> needs_of(const OperatorGraph& graph, std::span<const Share> shares);

struct OperatorRows {
  int index = 0;  ///< of the operator
  Region rows;
  bool operator==(const OperatorRows&) const = default;
};

/// One of the messages in which an input goes up.
struct Chunk {
  int input = 0;
  std::vector<Region> rows;            ///< that arrive with it
  std::int64_t rows_after = 0;         ///< of this input, in later chunks
  std::vector<OperatorRows> possible;  ///< what the server can compute now but not before, in order
};

struct Stream {
  std::vector<Chunk> chunks;   ///< in the order in which they are sent
  std::vector<int> operators;  ///< those that the server computes as chunks arrive; empty: it waits for whole inputs
  int next = 0;                ///< the operator after those
};

/// Splits inputs of which the server needs rows into `chunks` messages each, of equally many rows, lowest rows first.
/// With more than one, the server computes its first operators as the chunks arrive, up to the first that is not
/// computed row by row (Operand::needed) from inputs and these operators alone, or is a state. `needs` are the
/// server's. Throws Error(kInvalidArgument) for chunks below 1.
Stream stream_of(const OperatorGraph& graph, std::span<const Share> shares, const Needs& needs, int chunks);

}  // namespace atl::plan
