// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

/// Four amounts of at least 0: of the robot, the server, the way up and the way down.
using Amounts = std::array<double, 4>;

struct WeightGame {
  Amounts weights{};
  double value = 0;
};

/// Returns the weights, at least 0 and adding up to 1, that maximise the smallest weighted sum over all columns, and
/// that sum: a matrix game, solved as a linear program (Dantzig, "A proof of the equivalence of the programming problem
/// and the game problem", 1951) with four rows, by the simplex method. There must be a column. The weights are valid
/// despite rounding; the value is exact up to rounding.
WeightGame solve_weights(std::span<const Amounts> columns);

/// A lower bound on the seconds of any plan, and the weights of the resources that limit it, which add up to 1. A
/// half-duplex link has one weight, the same in `up` and `down`.
struct FluidBound {
  double seconds = 0;
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
  int cuts = 0;  ///< minimum cuts computed
};

/// Lower bounds on simulate(...).seconds for any shares and chunks. Robot, server and link are each busy for no longer
/// than a plan takes; so for any weights of the three that add up to 1, the weighted sum of their times is a bound, and
/// the least such sum, over all plans that divide operators at will, is a minimum cut (CutGraph). The bound is the
/// largest over all weights, by cutting planes (Kelley, "The cutting-plane method for solving convex programs", 1960):
/// solve the small linear program of the plans known so far, add the cheapest plan at its weights, until that gains
/// less than a millionth.
///
/// This assumes that a side that computes a share of an operator's rows needs at least that share of its operands'
/// rows. Where Operand::needed returns less (slices, strides that skip rows, padding), the bound is lowered by what
/// that can save, according to the cut's multipliers. A plan that uses the server waits for two latencies, and so do
/// its server and each direction of the link; a half-duplex link waits for one. If rows are computed from nothing, all
/// wait for one.
class FluidBounds {
 public:
  /// Calls every operand's `needed` once per row. The graph must pass check() and outlive this object.
  explicit FluidBounds(const OperatorGraph& graph);

  /// Returns the bound for a link. Results for one link save cuts for the next. Throws as check(link).
  FluidBound at(const LinkCost& link);
  /// Returns a lower bound, over all plans, on the sum of the seconds for which robot, server, the way up and the way
  /// down are busy, each times its weight, of at least 0. A half-duplex link is one way, with the weight of the way up.
  /// Waiting for latencies counts as in at(). The link must pass check().
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
  double local_seconds_ = 0;                 // of the needed rows on the robot
  bool is_proportional_ = true;              // no operand needs a smaller share
  double waits_ = 2;                         // latencies of a plan that uses the server: to it, and back
  std::vector<double> idle_;                 // by operator: the share of its rows that neither side needs
  std::vector<std::vector<double>> spared_;  // by operator and operand: by how much the share needed can be smaller
};

/// Returns the bound for a single link. Throws as check().
FluidBound fluid_bound(const OperatorGraph& graph, const LinkCost& link);

}  // namespace atl::plan
