// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/core/region.h"
#include "atoll/infer/plan.h"
#include "atoll/infer/run/operators.h"
#include "atoll/plan/operators/cuts.h"

namespace atl::infer {

/// One step of a side. Rows are along the tensor's divided dimension; [0, 1) for a tensor that is not divided.
struct Step {
  enum class Kind {
    kCompute,  ///< rows of the outputs of node `index`
    kState,    ///< the state of these rows of what node `index` sums over (Operators::State)
    kResult,   ///< rows of the outputs of node `index`, from the states of all rows
    kSend,     ///< sends rows of tensor `index` to the other side; returns at once
    kReceive,  ///< waits for rows of tensor `index`, which the other side sends in one message
    kFree,     ///< frees tensor `index`, which is no longer used
  };
  Kind kind = Kind::kCompute;
  int index = 0;
  Region rows;
  bool operator==(const Step&) const = default;
};

inline bool computes(const Step& step) noexcept {
  return step.kind == Step::Kind::kCompute || step.kind == Step::Kind::kState || step.kind == Step::Kind::kResult;
}

/// The steps of one side of an inference, in order. Both sides' programs follow from the graph and the plan alone
/// and match: each kReceive has its kSend, and the sides never wait for each other in a cycle.
struct Program {
  std::vector<Step> steps;
  bool operator==(const Program&) const = default;
};

/// Makes the program of one side, which computes its shares in the order of the graph. Rows of a tensor that it needs
/// and does not compute come from the other side, in one message for each gap, sent as soon as they are made; outputs
/// go to the robot in the same way. Throws Error(kInvalidArgument) if a side needs rows that it can neither compute nor
/// receive, and for shares that plan::simulate would refuse.
///
/// For a node that needs sums, a side makes one state for each gap that it fills, and one for each range between these.
/// A side that would make all states and the whole result calls the node itself instead, for the bits of the unsplit
/// model.
///
/// With chunks, inputs are sent up in that many messages of equally many rows, and after each chunk the server's first
/// operators, as far as plan::simulate streams them, compute what has become possible.
Program program_of(const Graph& graph, const Operators& operators, const Plan& plan, plan::Side side);

/// By operator, the rows that the robot alone has to make for the outputs if it holds the rows `held`, by tensor.
/// `lowered` is operator_graph(graph, operators, ...), with any costs, and `taken` is taken_by_all().
std::vector<std::vector<Region>> rows_to_make(const Graph& graph, const Operators& operators,
                                              const plan::OperatorGraph& lowered,
                                              const std::vector<std::vector<int>>& taken,
                                              const std::vector<std::vector<Region>>& held);

/// Makes the program by which the robot alone computes the outputs from what it holds: `held`, by tensor, regions in
/// order, with whole inputs. It sends and receives nothing.
Program rest_of(const Graph& graph, const Operators& operators, const std::vector<std::vector<Region>>& held);

}  // namespace atl::infer
