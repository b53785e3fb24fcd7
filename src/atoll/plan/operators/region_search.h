// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

struct SearchOptions {
  /// In how many parts tensors are cut, ascending. The first grid is searched whole, others near the best so far.
  std::vector<int> grids = {7, 14, 28};
  int window = 2;          ///< how near, in steps of the grid at hand
  int most_meetings = 24;  ///< tensors at which the sides may exchange rows; longer chains leave out the larger ones
  double epsilon = 1e-3;   ///< by which share the plan found may take longer than the best of the grid
  double least_gap = 0.1;  ///< no search where the bound says that no plan saves more than this share
  double margin = 0.005;   ///< a split that saves no more than this share is not worth its messages
  double seconds = 0.08;   ///< for all of it; then the best plan so far is returned
  int chunks = 8;          ///< in which inputs are streamed, where that is tried
};

/// The best plan found, and how.
struct RegionPlan {
  OperatorPlan plan;        ///< its policy is "local", "offload", "stream", "cut" or "regions"
  double bound = 0;         ///< seconds that no plan undercuts
  bool is_searched = true;  ///< false: the bound was near enough
  bool is_complete = true;  ///< false: the time limit ended the search
  std::int64_t labels = 0;  ///< partial plans that were looked at
};

/// Everything on the robot, everything on the server, the same streamed, and the best layer cut, each with its
/// prediction. Error(kInvalidArgument) as check().
std::vector<OperatorPlan> simple_plans(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                                       int chunks);

/// The first plan of the least seconds; there must be one.
const OperatorPlan& fastest(std::span<const OperatorPlan> plans);

/// Looks for regions that take less time than `plan`, whose prediction must be there. Returns the better of the two.
///
/// The server has the first rows of a tensor, the robot the last, and they may overlap. A partial plan reaches the
/// exit of a stage with regions of a grid, at the cost of four clocks: robot, server, and the link in both directions
/// (one clock where it is half duplex). It goes on to each later tensor, with a message at the start, in one direction
/// or both, and none between but states, so that the regions between follow from the end (passages()). Of two partial plans with
/// the same regions, one that is later on all clocks is dropped; so is one that cannot beat `plan` even if the rest
/// were divided at will (prices_of()). This is a label-setting algorithm for shortest paths with several criteria
/// (Martins, "On a multicriteria shortest path problem", 1984). For m tensors and a grid of K parts it takes O(m^2
/// K^4) steps, times the labels that no other dominates. Epsilon bounds these: what is later by no more than epsilon /
/// m of the whole counts as dominated (Warburton, "Approximation of Pareto optima in multiple-objective, shortest-path
/// problems", 1987).
///
/// Inputs are sent whole, and then the same is searched with inputs that are streamed, where the clocks count them as
/// if every chunk made the same part of the work possible; the best few plans by the clocks are predicted.
///
/// Exact (epsilon 0, margin 0, in time) among the plans of the first grid, for chains of single operators over a
/// full-duplex link, if chunks are 1. Where stages have branches or the model several inputs, and over a half-duplex
/// link, the clocks of the search may differ from the prediction; what is returned is compared by its prediction.
/// Error(kInvalidArgument) for a grid without parts.
RegionPlan improve(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, const OperatorPlan& plan,
                   const FluidBound& bound, const SearchOptions& options = {});

/// The fastest of the simple plans, improved.
RegionPlan search_regions(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                          const SearchOptions& options = {});

}  // namespace atl::plan
