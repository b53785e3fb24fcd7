// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/plan/operators.h"

namespace atl::plan {

/// Seconds that no plan undercuts, and which resources make it so: shares of 1. A half-duplex link has one weight, in both.
struct FluidBound {
  double seconds = 0;
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
  int cuts = 0;  ///< minimum cuts that were needed
};

/// Lower bounds on the time of any plan of a graph over any link: whatever regions it splits, in whatever order, streamed or
/// not. Robot, server and link are each busy for no longer than the plan takes. For any weights of the three that add up to 1,
/// the weighted sum of their times is therefore a bound, and its least over all plans, with operators divided at will, is a
/// minimum cut (CutGraph). The bound is the largest over all weights, found by cutting planes (Kelley, "The cutting-plane
/// method for solving convex programs", 1960): solve the small problem over the plans known so far, add the cheapest plan at
/// its weights, until nothing is gained beyond a millionth.
///
/// It rests on this: a side that computes a share of an operator's rows needs at least that share of its operands' rows. Where
/// Operand::needed asks for less (a slice, a stride that skips rows, padding), the bound is lowered by what the cut's
/// dual solution says that may save. Latency counts: on the server's time twice, on the link's once or twice.
class FluidBounds {
 public:
  /// Looks at every operand of every row once. The graph must pass check() and outlive this.
  explicit FluidBounds(const OperatorGraph& graph);
  FluidBounds(FluidBounds&&) noexcept;
  FluidBounds& operator=(FluidBounds&&) noexcept;
  ~FluidBounds();

  /// Plans found for one link are kept and save cuts for the next. Error(kInvalidArgument) as check(link).
  FluidBound at(const LinkCost& link);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// FluidBounds(graph).at(link), for one link.
FluidBound fluid_bound(const OperatorGraph& graph, const LinkCost& link);

}  // namespace atl::plan
