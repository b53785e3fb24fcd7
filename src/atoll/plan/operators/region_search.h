// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

struct SearchOptions {
  /// The numbers of parts into which tensors are cut, ascending. The first grid is searched whole, the others near the
  /// best so far.
  std::vector<int> grids = {7, 14, 28};
  int window = 2;          ///< how near, in steps of the current grid
  int most_meetings = 24;  ///< limit on tensors where rows may be exchanged; longer chains leave out the larger ones
  double epsilon = 1e-3;   ///< share by which the plan may exceed the best of the grid
  double least_gap = 0.1;  ///< no search if the bound shows that no plan saves more than this share
  double margin = 0.005;   ///< a split that saves no more than this share is not worth its messages
  double seconds = 0.08;   ///< time limit; then the best plan so far is returned
  int chunks = 8;          ///< in which inputs are streamed, if that is tried
};

/// The best plan found, and how.
struct RegionPlan {
  OperatorPlan plan;        ///< its policy is "local", "offload", "stream", "cut" or "regions"
  double bound = 0;         ///< lower bound on the seconds of any plan
  bool is_searched = true;  ///< false: the bound was near enough
  bool is_complete = true;  ///< false: the time limit ended the search
  std::int64_t labels = 0;  ///< partial plans examined
};

/// Returns everything on the robot, everything on the server, the same streamed, and the best layer cut, each with its
/// prediction. Throws as check().
std::vector<OperatorPlan> simple_plans(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                                       int chunks);

/// Returns the first plan with the fewest seconds; there must be one.
const OperatorPlan& fastest(std::span<const OperatorPlan> plans);

/// Searches for regions that take less time than `plan`, which must have its prediction. Returns the better of the two.
///
/// The server has the first rows of a tensor, the robot the last, and they may overlap. A partial plan reaches the exit
/// of a stage with regions of a grid, at the cost of four clocks: robot, server, and the link in both directions (one
/// clock if it is half duplex). It continues to each later tensor, with a message at the start, in one direction or
/// both, and none between except states, so that the regions between follow from the end (passages()). Of two partial
/// plans with the same regions, one that is later on all clocks is dropped; so is one that cannot beat `plan` even if
/// the rest were divided at will (prices_of()). This is a label-setting algorithm for shortest paths with several
/// criteria (Martins, "On a multicriteria shortest path problem", 1984). For m tensors and a grid of K parts it takes
/// O(m^2 K^4) steps, times the labels that no other dominates. Epsilon bounds these: a label that is later by no more
/// than epsilon / m of the whole counts as dominated (Warburton, "Approximation of Pareto optima in multiple-objective,
/// shortest-path problems", 1987).
///
/// Inputs are first sent whole; then the search is repeated with streamed inputs, where the clocks assume that every
/// chunk makes the same part of the work possible; the best few plans by the clocks are predicted.
///
/// Exact (epsilon 0, margin 0, in time) among the plans of the first grid, for chains of single operators over a
/// full-duplex link, if chunks are 1. If stages have branches or the model several inputs, and over a half-duplex link,
/// the clocks of the search may differ from the prediction; the returned plan is compared by its prediction. Throws
/// Error(kInvalidArgument) for a grid without parts.
RegionPlan improve(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, const OperatorPlan& plan,
                   const FluidBound& bound, const SearchOptions& options = {});

/// Returns the fastest of the simple plans, improved.
RegionPlan search_regions(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                          const SearchOptions& options = {});

}  // namespace atl::plan
