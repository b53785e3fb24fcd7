// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"

namespace atl::plan {

inline const Operator& operator_at(const OperatorGraph& graph, int index) {
  return graph.operators[static_cast<std::size_t>(index)];
}

/// Operators between two tensors through which the whole model passes: what is divided at either end is one tensor.
struct Stage {
  std::vector<int> operators;  ///< in graph order, without those that no output needs
  std::vector<int> exits;      ///< the last operator, or the outputs of the model if there are several
  std::int64_t rows = 1;       ///< of the exit; 1 if there are several, which are not divided
};

struct StageChain {
  std::vector<int> inputs;  ///< of the model: operands of the first stage
  std::vector<Stage> stages;
};

/// Returns the chain of the shortest stages, by one pass over the operators. No stages if the outputs are inputs. A
/// model with several inputs is in its first stage until the last of them has been used.
StageChain stages_of(const OperatorGraph& graph);

/// Returns the bytes of all exits of the stage.
double exit_bytes(const OperatorGraph& graph, const Stage& stage);

/// Returns the rows, of the operand's `rows` rows, that a side needs in order to compute `made` of the consumer's; none
/// for none.
Region rows_needed(const Operand& operand, Region made, std::int64_t rows);

/// Adds to `from` the rows of the operand's `rows` rows that each side needs in order to compute `made`.
void add_needs(const Operand& operand, const Share& made, std::int64_t rows, Share& from);

/// Returns the rows of an operator with `rows` rows that each side computes when its consumers on that side need
/// `needed`: the server from the first row on, the robot to the last. Rows that neither needs, which a stride may skip,
/// go to the neighbouring side, so that all are computed, unless neither side needs any.
Share closed(const Share& needed, std::int64_t rows) noexcept;

/// The sides that lack a state (Operator::is_state) which both need, and exchange where it is computed.
struct StateLack {
  int index = 0;  ///< of the operator
  bool robot = false;
  bool server = false;
};

/// Goes back through one stage. On entry `shares`, by operator of the graph, hold what the sides compute of the stage's
/// exits, and nothing for its other operators. On return they also hold what the sides compute of these, with nothing
/// sent between them except states, and for the operands that enter the stage the rows that are needed, added to those
/// already there. If both sides need a state, each computes that of the rows which it has for later operators; if there
/// are none, both compute it of all rows. Returns the stage's states, in graph order.
std::vector<StateLack> compose(const OperatorGraph& graph, const Stage& stage, std::span<Share> shares);

/// A state that the sides exchange on a passage.
struct StateExchange {
  double bytes = 0;
  double server_after = 0;  ///< seconds of computing after it, to the end of the passage
  double robot_after = 0;
  bool server_lacks = false;  ///< the server needs the robot's state
  bool robot_lacks = false;
};

/// The work from one tensor to a later one without a message between except states, when the server computes the rows
/// [0, cut) of the later one and the robot [cut, rows). What one side computes does not depend on the other: if both
/// compute some rows there are two cuts, and each side has its half of one passage.
struct Passage {
  Region server_needs;            ///< of the tensor where the passage begins
  Region robot_needs;             ///< as above
  std::int64_t server_makes = 0;  ///< [0, server_makes) of it, if the sides exchange nothing there either
  std::int64_t robot_makes = 0;   ///< [robot_makes, rows) likewise
  double server_seconds = 0;      ///< of computing
  double robot_seconds = 0;
  double input_bytes = 0;  ///< that the server needs of the model's inputs, if the passage begins with them
  int input_messages = 0;  ///< that carry them
  std::vector<StateExchange> exchanges = {};  ///< in order; the same states for all cuts
};

/// Returns the passages to the exit of stage `last`, cut at `cut`: from the model's inputs, then from the exits of the
/// stages `from`, which ascend and come before `last`. A stage with several exits is cut at 0 or 1: all on the robot or
/// all on the server.
std::vector<Passage> passages(const OperatorGraph& graph, const StageChain& chain, int last, std::int64_t cut,
                              std::span<const int> from);

/// The exit of a stage at which the sides may exchange rows, and what each of them computes of it: the server [0,
/// server_end), the robot [robot_begin, rows), where robot_begin is at most server_end.
struct Meeting {
  int stage = 0;
  std::int64_t server_end = 0;
  std::int64_t robot_begin = 0;
  bool operator==(const Meeting&) const = default;
};

/// Returns the shares of all operators when the sides exchange rows only of the inputs and at `meetings`: ascending,
/// the last one at the end of the chain. Operators that no output needs have none.
std::vector<Share> shares_through(const OperatorGraph& graph, const StageChain& chain,
                                  std::span<const Meeting> meetings);

}  // namespace atl::plan
