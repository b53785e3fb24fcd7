// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"
#include "atoll/plan/numbers.h"

namespace atl::plan {

/// Extra seconds, once in a step, of a stage that holds `item`.
struct TieCost {
  std::size_t item = 0;
  std::vector<double> seconds;  ///< by class
};

/// One arrangement of tied items: which of them share a stage, and the classes of all their stages but the first.
/// Within it, the cost of ties depends on one stage at a time.
struct TieCase {
  std::vector<char> blocked;                     ///< [item]: no stage may begin here
  std::vector<std::vector<std::size_t>> lowest;  ///< [class][end]: a stage up to `end` begins here or later
  std::vector<TieCost> costs;
  double least = 0;  ///< lower bound on the cost of the ties
};

/// Finds the stages of one pipeline on `counts` devices by class: the cheapest sum under a limit of the longest stage,
/// by a dynamic program from the last stage to the first over (first item, devices used by class, class of the first
/// stage). The stages after a stage determine its micro-batches in flight under 1F1B, whatever the number of stages
/// before it.
///
/// Steps: (1) for each multiset of devices, how early the stages after a cut and how late the stages before it can
/// reach within the limit and the memories, without transfers and ties: a cut must be between both; (2) each state
/// extends its stages by one, over the items that fit: plainly while the memory allows it, otherwise with
/// recomputation, which is never better if both fit; (3) the choices are recovered by going forward. O(classes^2 *
/// items * longest stage * product of (count + 1)) in the worst case.
///
/// Not thread safe. Throws Error(kInvalidArgument) if there would be more than 2^24 states.
class StageSearch {
 public:
  /// `stages` is the required number of stages; 0 stands for any number if devices may be left out, otherwise for all
  /// devices.
  StageSearch(const LayerCosts& costs, std::vector<std::int64_t> counts, std::int64_t micro_batches,
              std::int64_t stages, bool leave_out, double extra_bytes = 0);

  /// Returns whether any cuts and order fit the memories. Exact except for ties, of which it knows the shared bytes.
  bool fits(const std::vector<char>& blocked) const;

  /// Returns the stages with the smallest (sum of compute and send) + chunks * ties, none busy for longer than `limit`;
  /// none if no sum is at most `most`.
  std::optional<std::vector<LayerStage>> cheapest(const TieCase& ties, double limit, double most);

  /// The number of states that `cheapest` has extended so far.
  std::int64_t extended() const noexcept { return extended_; }

 private:
  std::size_t cell(std::size_t code, std::size_t device) const { return (code * classes_ + device) * (items_ + 1); }
  std::int64_t digit(std::size_t code, std::size_t device) const { return digits_[code * classes_ + device]; }
  std::int64_t most_stages() const { return stages_ > 0 ? stages_ : all_; }
  double flight(std::int64_t from_end) const;
  std::size_t lowest(std::size_t device, std::int64_t from_end, std::size_t end, bool recompute) const;
  bool is_last(std::size_t code) const;
  void find_memory_limits();
  void find_busy_limits(double limit);
  void find_reach(double limit);
  std::size_t reach_before(std::size_t code, double limit) const;
  void charge(const TieCase& ties);
  void extend(std::size_t code, std::size_t next, std::size_t device, const TieCase& ties, double most);
  void relax(std::size_t to, std::size_t first, std::size_t last, double base, const std::vector<double>& totals);
  double value_at(std::size_t code, std::size_t device, std::size_t end) const;
  std::vector<LayerStage> found(std::size_t code, std::size_t device, const TieCase& ties) const;
  std::optional<LayerStage> step(std::size_t code, std::size_t device, std::size_t begin, const TieCase& ties,
                                 std::size_t& next) const;

  const LayerCosts& costs_;
  std::vector<std::int64_t> counts_;
  std::int64_t micro_batches_;
  std::int64_t stages_;
  bool leave_out_;
  std::size_t items_;
  std::size_t classes_;
  std::int64_t all_ = 0;           // devices
  std::size_t codes_ = 1;          // multisets of devices, in mixed radix
  std::vector<std::size_t> unit_;  // [class]: increment of a code for one more device
  std::vector<std::int64_t> digits_, total_;
  std::vector<double> cap_;
  std::vector<double> least_before_;             // [item]: lower bound on the sum of the stages before
  std::vector<std::size_t> memory_limit_[2];     // [recompute][(class, from_end, end)]: first item that fits
  std::vector<std::size_t> busy_limit_[2];       // [recompute][(class, next, end)]
  std::vector<std::vector<double>> charged_[2];  // totals including ties
  std::vector<std::size_t> reach_, late_;        // [code]: earliest begin; [code]: latest end of stages before
  std::vector<double> value_;                    // [(code, class, begin)]
  std::int64_t extended_ = 0;
};

/// Relative difference between sums of the same seconds in another order.
inline constexpr double kPipelineRounding = 1e-12;

/// Returns all arrangements for classes with devices; one without restrictions if nothing is tied. Throws
/// Error(kInvalidArgument) above 4096.
std::vector<TieCase> tie_cases(const LayerCosts& costs, const std::vector<std::int64_t>& counts);

/// Returns the fastest pipeline of `counts` devices by class for this number of micro-batches; none if nothing fits the
/// memories, or if nothing takes less than `cutoff` seconds. Exact for LayerPipeline::seconds over cuts, orders of
/// devices, recomputation by stage and the places of ties; with `leave_out` also over which devices have a stage.
///
/// The objective is weight * period + fill. Steps: for each arrangement of the ties, the cheapest fill under a limit of
/// the period (StageSearch) is a decreasing step function of the limit; the limits that can matter are the seconds of
/// some stage, above the least period and below (cutoff - least fill) / weight. Intervals of them are halved, those of
/// the best bound first, until no bound is below the best pipeline. A probe that ends at a shorter period than its
/// limit settles all limits between.
std::optional<LayerPipeline> best_pipeline(const LayerCosts& costs, const std::vector<std::int64_t>& counts,
                                           std::int64_t micro_batches, bool leave_out, double cutoff = kInfinity);

/// Returns whether any stages fit the memories, each with `extra_bytes` more. Exact, and never slower than
/// best_pipeline.
bool pipeline_fits(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches,
                   bool leave_out, double extra_bytes = 0);

/// Returns a lower bound on the seconds of any pipeline of these devices.
double pipeline_bound(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches);

/// Returns the ranges of an interleaved pipeline: chunks() for each device, where range c is on device c mod p of p. Of
/// `pipeline`, which has one range for each device, the devices, their order, their micro-batches in flight and whether
/// they recompute are kept; the items are divided again. `seconds` is that of these ranges, where every boundary that
/// is crossed counts. None if there are fewer items than ranges, if a tie forbids the cuts, or if no division was found
/// that fits the memories.
///
/// Steps: (1) the division whose longest range is shortest, by a dynamic program over (range, end); (2) an item moves
/// from one range to another, shifting those between by one, while this makes devices fit or the step shorter. The
/// second step is a heuristic with a budget: its result is good, but not proved to be the best. O(ranges * items^2) for
/// the first, at most 2^22 ranges evaluated for the second.
std::optional<LayerPipeline> chunked(const LayerCosts& costs, const LayerPipeline& pipeline);

}  // namespace atl::plan
