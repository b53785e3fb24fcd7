// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/weight_game.h"

namespace atl::plan {

/// Seconds that no plan undercuts, and the weights of what keeps it from that, which add up to 1. A half-duplex link
/// has one weight, the same in `up` and `down`.
struct FluidBound {
  double seconds = 0;
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
  int cuts = 0;  ///< minimum cuts that were needed
};

/// Lower bounds on simulate(...).seconds for any shares and chunks. Robot, server and link are each busy for no
/// longer than a plan takes; so for any weights of the three that add up to 1, the weighted sum of their times is
/// a bound, and the least such sum, over all plans that divide operators at will, is a minimum cut (CutGraph). The
/// bound is the largest over all weights, by cutting planes (Kelley, "The cutting-plane method for solving convex
/// programs", 1960): solve the small linear program of the plans known so far, add the cheapest plan at its weights,
/// until that gains less than a millionth.
///
/// This counts on a side that computes a share of an operator's rows to need at least that share of its operands'
/// rows. Where Operand::needed asks for less (slices, strides that skip rows, padding), the bound is lowered by what
/// that can save, as the cut's multipliers say. A plan that uses the server waits for two latencies, and so do its
/// server and each direction of the link; a half-duplex link waits for one. Where rows are computed from nothing,
/// all wait for one.
class FluidBounds {
 public:
  /// Asks every operand once per row. The graph must pass check() and outlive this.
  explicit FluidBounds(const OperatorGraph& graph);

  /// What was found for one link saves cuts for the next. Error(kInvalidArgument) as check(link).
  FluidBound at(const LinkCost& link);
  /// What no plan undercuts: the seconds for which it keeps robot, server, the way up and the way down busy, each times
  /// its weight, of at least 0. A half-duplex link is one way, with the weight of the way up. Waiting for latencies
  /// counts as it does in at(). The link must pass check().
  double least(const Amounts& weights, const LinkCost& link);

 private:
  void look_at_rows();
  // Amounts are of the robot, the server, the way up (of a half-duplex link: both ways) and the way down.
  Amounts column(const Totals& totals, const LinkCost& link) const;
  LayerCut cheapest(const Amounts& weights, const LinkCost& link);
  double certified(const Amounts& weights, const LinkCost& link);

  const OperatorGraph& graph_;
  CutGraph cuts_;
  std::vector<Totals> known_;                // of plans
  double local_seconds_ = 0;                 // of the rows that are needed, on the robot
  bool is_proportional_ = true;              // nothing is spared
  double waits_ = 2;                         // latencies of a plan that uses the server: to it, and back
  std::vector<double> idle_;                 // by operator: the share of its rows that nobody needs
  std::vector<std::vector<double>> spared_;  // by operator and operand: by how much the share needed can be smaller
};

/// For one link. Error(kInvalidArgument) as check().
FluidBound fluid_bound(const OperatorGraph& graph, const LinkCost& link);

}  // namespace atl::plan
