// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "atoll/core/region.h"

namespace atl::plan {

/// The cost of `rows` of an operator's output on one device. No rows cost nothing.
struct RowCost {
  double fixed = 0;  ///< seconds of a launch, however few rows
  double per_row = 0;

  double seconds(std::int64_t rows) const noexcept {
    return rows <= 0 ? 0 : fixed + per_row * static_cast<double>(rows);
  }
};

/// One operand of an operator.
struct Operand {
  int producer = 0;  ///< index of the operator that makes it
  /// Returns the rows of the operand that given rows of the output are computed from, clipped to those that exist.
  /// Empty: any row needs the whole operand. Must be monotonic: more rows never need fewer.
  std::function<Region(Region)> needed;
};

/// One operator of a model, with its output. A model's input is an operator without operands and without cost, whose
/// output the robot holds at the start.
struct Operator {
  std::string name;
  std::int64_t rows = 1;   ///< of its output along the dimension that is split; 1: computed on one side, or on both
  std::int64_t bytes = 0;  ///< of its whole output on the link, as it is sent
  RowCost robot;
  RowCost server;
  std::vector<Operand> operands;
  /// Its rows are summed up: a message with any of its rows has all of `bytes`, and a consumer needs the states of all
  /// rows. It is not an output; its rows are those of its first operand.
  bool is_state = false;

  bool is_input() const noexcept { return operands.empty(); }
  /// Whether its rows can be computed as those of its operands arrive.
  bool is_by_row() const noexcept {
    return !is_state && std::ranges::all_of(operands, [](const Operand& each) { return each.needed != nullptr; });
  }
};

/// Operators in an order in which they can run: operands come before their consumers. The robot needs the outputs of
/// `outputs`.
struct OperatorGraph {
  std::vector<Operator> operators;
  std::vector<int> outputs;

  double robot_seconds() const noexcept;  ///< of the whole model there
  double server_seconds() const noexcept;
};

/// Names an operator in messages: "operator 3 (conv1)".
std::string operator_name(const OperatorGraph& graph, int index);

/// Returns for each operator whether it is an output, or an output depends on it.
std::vector<bool> wanted_operators(const OperatorGraph& graph);

/// Returns for each of the consumer's `users` rows those of the operand's `rows` rows that it needs.
std::vector<Region> needed_by_row(const Operand& operand, std::int64_t users, std::int64_t rows);

/// Returns the same share of `rows` rows as the region is of `users` rows, rounded outwards; none for none.
inline Region same_share(Region region, std::int64_t rows, std::int64_t users) noexcept {
  if (region.is_empty()) return {};
  return {region.begin * rows / users, (region.end * rows + users - 1) / users};
}

struct LinkCost {
  double up_bytes_per_second = 0;
  double down_bytes_per_second = 0;
  double latency = 0;           ///< seconds of a message, whatever its size
  bool is_half_duplex = false;  ///< both directions share one medium, which sends in one direction at a time

  /// Returns the link with `rate` bytes per second up, and down in the same ratio.
  LinkCost at(double rate) const noexcept {
    return {rate, down_bytes_per_second * (rate / up_bytes_per_second), latency, is_half_duplex};
  }
};

/// Throws Error(kInvalidArgument) that names the operator: for operands that come later or do not exist, for costs that
/// are negative or infinite, negative bytes, fewer rows than 1, an input with a cost, an operand with `needed` if it or
/// its consumer has 1 row or the operand is a state, states that are inputs or outputs, and outputs that are missing or
/// do not exist.
void check(const OperatorGraph& graph);
/// Throws Error(kInvalidArgument) for rates that are not above 0 and a latency that is negative or infinite.
void check(const LinkCost& link);

/// Power that the robot draws. Computing and waiting exclude each other; the radio adds to either.
struct RobotPower {
  double compute_watts = 13.35;
  double idle_watts = 4.04;
  double radio_watts = 0.21;
};

/// The rows of one operator's output that each side computes; together they are all of them. Both may compute the same
/// rows.
struct Share {
  Region robot;
  Region server;
  bool operator==(const Share&) const = default;
};

/// The predicted course of one inference.
struct Prediction {
  double seconds = 0;     ///< from the input to the last output on the robot
  double robot_busy = 0;  ///< seconds of computing
  double server_busy = 0;
  double up_bytes = 0;
  double down_bytes = 0;
  double joules = 0;      ///< of the robot
  double rows_twice = 0;  ///< seconds that the robot computes rows that the server computes too
  bool operator==(const Prediction&) const = default;
};

/// What each side computes, and the predicted result.
struct OperatorPlan : Prediction {
  std::string policy;
  std::vector<Share> shares;  ///< by operator; of inputs, the robot has all rows
  int chunks = 1;             ///< messages per input upwards; the server computes as they arrive
  bool operator==(const OperatorPlan&) const = default;
};

}  // namespace atl::plan
