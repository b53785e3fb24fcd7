// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/pipeline.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

constexpr std::size_t kMaxLooks = std::size_t{1} << 22;

// Bytes that devices lack, seconds of the step, and how uneven the devices are; compared in this order, smaller is
// better.
using Worth = std::tuple<double, double, double>;

class Division {
 public:
  Division(const LayerCosts& costs, const LayerPipeline& pipeline)
      : costs_(costs),
        pipeline_(pipeline),
        positions_(pipeline.stages.size()),
        ranges_(positions_ * static_cast<std::size_t>(costs.request().chunks)),
        may_cut_(costs.items() + 1, 1) {
    for (const LayerTie& tie : costs.request().ties) {
      if (tie.apart) continue;
      const auto [first, last] = std::minmax_element(tie.items.begin(), tie.items.end());
      std::fill(may_cut_.begin() + static_cast<std::ptrdiff_t>(*first) + 1,
                may_cut_.begin() + static_cast<std::ptrdiff_t>(*last) + 1, 0);
    }
  }

  std::optional<LayerPipeline> run() {
    if (!cut_evenly()) return std::nullopt;
    improve();
    if (std::get<0>(worth()) > 0) return std::nullopt;
    return priced_ranges();
  }

 private:
  const LayerStage& device_of(std::size_t range) const { return pipeline_.stages[range % positions_]; }

  double send(std::size_t range, std::size_t end) const {
    if (range + 1 == ranges_ || positions_ == 1) return 0;
    return costs_.send(device_of(range).device, device_of(range + 1).device, end) / costs_.chunks();
  }

  double busy(std::size_t range, std::size_t begin, std::size_t end) const {
    const LayerStage& on = device_of(range);
    const double seconds =
        costs_.compute(on.device, begin, end, on.recompute) + costs_.accumulate(on.device, begin, end);
    const double both_ways = send(range, end);
    if (costs_.request().transfers == LayerOverlap::kOverlapped) return std::max(seconds, both_ways / 2);
    return seconds + both_ways;
  }

  // busy() does not increase with `begin`, so no earlier one helps if the range alone takes longer than the best known,
  // or if all divisions up to it do.
  bool cut_evenly() {
    const std::size_t items = costs_.items();
    if (ranges_ > items) return false;
    std::vector<double> longest(items + 1, kInfinity);
    std::vector<std::vector<std::size_t>> begins(ranges_, std::vector<std::size_t>(items + 1, 0));
    longest[0] = 0;
    for (std::size_t range = 0; range < ranges_; ++range) {
      std::vector<double> least = longest;  // of divisions up to an item or an earlier one
      for (std::size_t item = 1; item <= items; ++item) least[item] = std::min(least[item], least[item - 1]);
      std::vector<double> next(items + 1, kInfinity);
      for (std::size_t end = range + 1; end <= items; ++end) {
        if (may_cut_[end] == 0) continue;
        for (std::size_t begin = end; begin-- > range;) {
          const double seconds = busy(range, begin, end);
          if (std::max(least[begin], seconds) >= next[end]) break;
          if (std::max(longest[begin], seconds) >= next[end]) continue;
          next[end] = std::max(longest[begin], seconds);
          begins[range][end] = begin;
        }
      }
      longest = std::move(next);
    }
    if (longest[items] == kInfinity) return false;
    ends_.assign(ranges_, items);
    for (std::size_t range = ranges_; range-- > 1;) ends_[range - 1] = begins[range][ends_[range]];
    return true;
  }

  void improve() {
    Worth best = worth();
    for (bool moved = true; moved && looks_ < kMaxLooks;) {
      moved = false;
      for (std::size_t first = 0; first + 1 < ranges_; ++first) {
        for (std::size_t past = first + 1; past < ranges_ && looks_ < kMaxLooks; ++past) {
          for (const int step : {1, -1, 2, -2}) moved |= try_move(first, past, step, best);
        }
      }
    }
  }

  // Moves the cuts from `first` to `past` - 1 by `step` items forward, or back.
  bool try_move(std::size_t first, std::size_t past, int step, Worth& best) {
    const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
    const std::size_t room = step > 0 ? ends_[past] - ends_[past - 1] : ends_[first] - begin;
    if (room <= static_cast<std::size_t>(std::abs(step))) return false;
    const std::vector<std::size_t> before = ends_;
    bool valid = true;
    for (std::size_t cut = first; cut < past; ++cut) {
      ends_[cut] += static_cast<std::size_t>(step);
      valid = valid && may_cut_[ends_[cut]] != 0;
    }
    if (valid) {
      const Worth found = worth();
      if (found < best) {
        best = found;
        return true;
      }
    }
    ends_ = before;
    return false;
  }

  LayerStage stage(std::size_t range) const {
    LayerStage stage = device_of(range);  // its number, recomputation, micro-batches in flight and limit
    stage.begin = range == 0 ? 0 : ends_[range - 1];
    stage.end = ends_[range];
    stage.forward = costs_.forward(stage.device, stage.begin, stage.end);
    stage.backward =
        std::max(0.0, costs_.compute(stage.device, stage.begin, stage.end, stage.recompute) - stage.forward);
    stage.accumulate = costs_.accumulate(stage.device, stage.begin, stage.end);
    stage.send = send(range, stage.end);
    stage.seconds = busy(range, stage.begin, stage.end);
    stage.memory_bytes = costs_.memory(stage.begin, stage.end, stage.recompute, stage.in_flight);
    return stage;
  }

  LayerPipeline priced_ranges() const {
    LayerPipeline found;
    found.micro_batches = pipeline_.micro_batches;
    std::vector<double> seconds(positions_, 0);
    for (std::size_t range = 0; range < ranges_; ++range) {
      found.stages.push_back(stage(range));
      const LayerStage& each = found.stages.back();
      seconds[range % positions_] += each.seconds;
      found.fill += each.forward + each.backward + each.send;
    }
    found.period = *std::max_element(seconds.begin(), seconds.end());
    // A device that holds copies in several ranges counts once for each, because it adds them up as other devices do.
    found.ties = positions_ > 1 ? costs_.tie_seconds(found.stages) : 0;
    found.seconds =
        costs_.weight_of_busy(found.micro_batches) * found.period + found.fill / costs_.chunks() + found.ties;
    return found;
  }

  Worth worth() {
    looks_ += ranges_;
    const LayerPipeline found = priced_ranges();
    double lack = 0;
    double squares = 0;
    for (std::size_t position = 0; position < positions_; ++position) {
      double bytes = 0;
      double seconds = 0;
      for (std::size_t range = position; range < ranges_; range += positions_) {
        bytes += found.stages[range].memory_bytes;
        seconds += found.stages[range].seconds;
      }
      for (const LayerTie& tie : costs_.request().ties) bytes -= shared_bytes(tie, position);
      lack += std::max(0.0, bytes - pipeline_.stages[position].cap_bytes);
      squares += seconds * seconds;
    }
    return {lack, found.seconds, squares};
  }

  // Bytes that several ranges of a device hold once.
  double shared_bytes(const LayerTie& tie, std::size_t position) const {
    double holders = 0;
    for (std::size_t range = position; range < ranges_; range += positions_) {
      if (tie.held(range == 0 ? 0 : ends_[range - 1], ends_[range]) > 0) ++holders;
    }
    return holders > 1 ? (holders - 1) * tie.state_bytes() : 0;
  }

  const LayerCosts& costs_;
  const LayerPipeline& pipeline_;
  std::size_t positions_;
  std::size_t ranges_;
  std::vector<char> may_cut_;  // [item]: whether a range may begin here
  std::vector<std::size_t> ends_;
  std::size_t looks_ = 0;
};

}  // namespace

std::optional<LayerPipeline> chunked(const LayerCosts& costs, const LayerPipeline& pipeline) {
  if (static_cast<std::size_t>(costs.request().chunks) > costs.items() / pipeline.stages.size()) return std::nullopt;
  return Division(costs, pipeline).run();
}

}  // namespace atl::plan
