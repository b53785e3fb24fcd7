// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/region_search.h"

namespace atl::plan {

struct TableOptions {
  double least_rate = 62'500;  ///< bytes per second up; those down keep the ratio of the link's rates
  double most_rate = 125'000'000;
  int rates = 64;                ///< geometrically spaced from the least to the most
  int searches = 4;              ///< number of rates at which regions are searched
  double search_seconds = 0.06;  ///< for all searches together
  double margin = 0.005;         ///< a simpler plan is preferred if it takes at most this share longer
  SearchOptions search = {};     ///< except its margin and its seconds
};

/// The likelihood of a rate, up to a factor.
struct RateWeight {
  double rate = 0;  ///< bytes per second up; 0: nothing gets through
  double weight = 1;
};

/// A few plans of a model, each of which is the best one at some rates. Times are stored at the table's rates. Between
/// them a plan takes at most the linear interpolation over the time per byte, because with fixed shares over a
/// full-duplex link its time is a convex function of that; below the lowest rate at most the line given by all its
/// bytes, above the highest at most the time there.
struct PlanTable {
  LinkCost link;                             ///< the ratio of its rates, its latency and duplex apply to the table
  std::vector<double> rates;                 ///< ascending
  std::vector<OperatorPlan> plans;           ///< simple ones first, local at the head; predicted at a rate of theirs
  std::vector<std::vector<double>> seconds;  ///< by plan and rate
  double margin = 0;
  bool is_complete = true;  ///< false: the time limit ended the searches

  /// Returns an upper bound on the seconds of the plan; infinite for a rate of 0 unless it sends nothing.
  double seconds_at(std::size_t plan, double rate) const;
  /// Returns the simplest plan whose time is within the margin of the best: the mean time over `likely`, or that
  /// quantile of it, such as 0.95. With `most_seconds`, no plan counts as slower, because a local answer is given then.
  /// Throws Error(kInvalidArgument) for rates or weights that are negative or not finite, weights of sum 0, and a
  /// quantile outside (0, 1].
  std::size_t choose(std::span<const RateWeight> likely, std::optional<double> quantile = {},
                     double most_seconds = kInfinity) const;
  /// Returns the mean, or that quantile, of the time of a plan over `likely`, as choose() computes it.
  double seconds_over(std::size_t plan, std::span<const RateWeight> likely, std::optional<double> quantile = {},
                      double most_seconds = kInfinity) const;
};

/// Makes the table of a model. Candidates are everything on the robot, everything on the server, the same streamed
/// (search.chunks), all layer cuts that are best at some rate, and regions searched at a few rates. The cuts come from
/// the corners of the lower envelope of their times (Eisner and Severance, "Mathematical techniques for efficient
/// record segmentation in large shared databases", 1976): twice as many minimum cuts as there are corners. Each
/// candidate is predicted at as many rates as its bends need. Throws as check(), and Error(kInvalidArgument) for fewer
/// than 2 rates and for rates that do not ascend from above 0.
PlanTable make_table(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                     const TableOptions& options = {});

}  // namespace atl::plan
