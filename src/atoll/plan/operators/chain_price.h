// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/stages.h"

namespace atl::plan {

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
