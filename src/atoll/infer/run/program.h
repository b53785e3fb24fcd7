// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/core/region.h"
#include "atoll/infer/run/division.h"
#include "atoll/plan/operators/cuts.h"

namespace atl::infer {

/// One thing that a side does. Rows are along the tensor's divided dimension; of one that is not divided, [0, 1).
struct Step {
  enum class Kind {
    kCompute,  ///< rows of the outputs of node `index`
    kState,    ///< the state of these rows of what node `index` sums over (Operators::State)
    kResult,   ///< rows of the outputs of node `index`, from the states of all rows
    kSend,     ///< rows of tensor `index` to the other side; returns at once
    kReceive,  ///< waits for rows of tensor `index`, which the other side sends in one message
    kFree,     ///< tensor `index` is not used any more
  };
  Kind kind = Kind::kCompute;
  int index = 0;
  Region rows;
  bool operator==(const Step&) const = default;
};

inline bool computes(const Step& step) noexcept {
  return step.kind == Step::Kind::kCompute || step.kind == Step::Kind::kState || step.kind == Step::Kind::kResult;
}

/// What one side does for one inference, in order. Both sides' programs follow from the graph and the division alone, and
/// fit together: each kReceive has its kSend, and neither side waits for what the other sends only after it.
struct Program {
  std::vector<Step> steps;
  bool operator==(const Program&) const = default;
};

/// A side computes its shares in the order of the graph. What it needs of a tensor and does not compute comes from the other
/// side in one message for each gap, sent as soon as it is made; so do outputs to the robot. A side that needs rows which it
/// neither computes nor can get is Error(kInvalidArgument), as are shares that plan::simulate would refuse.
///
/// Of a node that needs sums a side makes one state for each gap that it fills, and one for each stretch between these. A
/// side that has all states and all of the result to make calls the node itself instead, for the bits of the unsplit model.
///
/// With chunks, inputs go up in that many messages of equally many rows, and the server's first operators, as far as
/// plan::simulate streams them, compute after each chunk what has become possible.
Program program_of(const Graph& graph, const Operators& operators, const Division& division, plan::Side side);

/// What the robot still has to do alone to get the outputs, when it holds `held` (by tensor, regions in order; the inputs
/// whole). Nothing is sent or received.
Program rest_of(const Graph& graph, const Operators& operators, const std::vector<std::vector<Region>>& held);

}  // namespace atl::infer
