// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/stages.h"

namespace atl::plan {

/// The exit of a stage at which the sides may exchange rows, and where a search may cut it.
struct GridTensor {
  int stage = 0;
  std::int64_t rows = 1;
  double bytes = 0;                ///< of all exits
  std::vector<std::int64_t> cuts;  ///< ascending, from 0 to rows
  std::vector<bool> may_end;       ///< by cut: the server's rows
  std::vector<bool> may_begin;     ///< by cut: the robot's rows
  bool is_by_row = false;          ///< all operators up to it are computed row by row, so that inputs can be streamed
  double server_fixed = 0;         ///< fixed seconds of these operators on the server, once more for each chunk
  bool is_state = false;           ///< any rows of it are one state of all its bytes
};

/// Returns the stages at whose exits the sides may exchange rows: all, or of long chains at most about `most`: the
/// smallest tensor of each of some parts of equal work, those where the sides of `shares` change, those after which
/// nothing is divided, and the last.
std::vector<int> meeting_stages(const OperatorGraph& graph, const StageChain& chain, const std::vector<Share>& shares,
                                int most);

/// Returns these stages' exits, cut into `parts` parts of equal rows, or into single rows if there are fewer.
std::vector<GridTensor> grid_of(const OperatorGraph& graph, const StageChain& chain, const std::vector<int>& stages,
                                int parts);

/// Keeps of each tensor's cuts only the first, the last, and those within `window` of where `shares` cut it.
void keep_near(const StageChain& chain, const std::vector<Share>& shares, int window, std::vector<GridTensor>& tensors);

/// Prices of a second of each lane; they add up to 1, where a half-duplex link has one price, in both directions. A
/// plan that continues from some stage ends no earlier than the price of the times until which its lanes are busy plus
/// that of the cheapest rest.
struct Price {
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
  std::vector<double> rest = {};  ///< by stage: lower bound on the cost of it and all after it, whatever the sides hold
  double whole = 0;               ///< lower bound on the cost of the whole chain, with the inputs on the robot
};

/// Returns the prices of the fluid bound, and a few others that give the largest values for the whole chain. `rest` is
/// the cheapest way through the stages with each tensor between them on one side, which is the minimum cut if stages
/// are single operators. Longer stages count every operator at its cheaper side, and when the side changes, the
/// smallest tensor of some path through. Operands of which a share of the rows does not need that share (slices) count
/// as paths that cost nothing.
std::vector<Price> prices_of(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
                             const FluidBound& bound);

}  // namespace atl::plan
