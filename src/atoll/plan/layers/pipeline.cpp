// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/pipeline.h"

#include <algorithm>
#include <utility>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::size_t kMaxCases = 4096;

// Lets no stage with `item` begin before `first`.
void begin_from(std::vector<std::size_t>& lowest, std::size_t item, std::size_t first) {
  for (std::size_t end = item + 1; end < lowest.size(); ++end) lowest[end] = std::max(lowest[end], first);
}

// Enumerates the gaps between a tie's items, from the first: joined, or separated, with each class for the later stage.
class Ways {
 public:
  Ways(const LayerCosts& costs, const std::vector<std::int64_t>& counts, const LayerTie& tie)
      : costs_(costs), counts_(counts), tie_(tie), items_(tie.items) {
    std::sort(items_.begin(), items_.end());
  }

  void extend(const TieCase& from, std::vector<TieCase>& out) { choose(1, from, {}, out); }

 private:
  // `later` holds the later stages.
  void choose(std::size_t place, const TieCase& from, const DeviceCounts& later, std::vector<TieCase>& out) {
    if (place == items_.size()) {
      out.push_back(priced(from, later));
      if (out.size() > kMaxCases) refuse("the ties can lie in more than 4096 ways: tie fewer items");
      return;
    }
    TieCase joined = from;
    for (std::size_t i = items_[place - 1] + 1; i <= items_[place]; ++i) joined.blocked[i] = 1;
    choose(place + 1, joined, later, out);
    if (!tie_.apart) return;
    for (std::size_t device = 0; device < costs_.classes(); ++device) {
      if (counts_[device] == 0) continue;
      TieCase parted = from;
      for (std::size_t other = 0; other < costs_.classes(); ++other) {
        const std::size_t before = items_[other == device ? place - 1 : place];
        begin_from(parted.lowest[other], items_[place], before + 1);
      }
      DeviceCounts more = later;
      ++more[device];
      choose(place + 1, parted, more, out);
    }
  }

  TieCase priced(TieCase each, const DeviceCounts& later) const {
    if (later.empty()) return each;
    TieCost cost{items_.front(), std::vector<double>(costs_.classes(), 0)};
    double least = kInfinity;
    for (std::size_t device = 0; device < costs_.classes(); ++device) {
      DeviceCounts all = later;
      ++all[device];
      cost.seconds[device] = costs_.reduce_seconds(tie_.gradient_bytes, all);
      if (counts_[device] > 0) least = std::min(least, cost.seconds[device]);
    }
    each.least += least;
    each.costs.push_back(std::move(cost));
    return each;
  }

  const LayerCosts& costs_;
  const std::vector<std::int64_t>& counts_;
  const LayerTie& tie_;
  std::vector<std::size_t> items_;
};

// Limits of the period from candidate `first` to `last`, and a lower bound on the sums of their pipelines.
struct Interval {
  std::size_t first = 0;
  std::size_t last = 0;
  double least_sum = 0;
  double bound = 0;
};

class PipelineSearch {
 public:
  PipelineSearch(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches,
                 bool leave_out, double cutoff)
      : costs_(costs),
        counts_(counts),
        micro_batches_(micro_batches),
        leave_out_(leave_out),
        weight_(costs.weight_of_busy(micro_batches)),
        least_period_(std::max(costs.spread(counts), costs.longest_item(counts))),
        least_sum_(costs.least_fill(counts)),
        best_(cutoff) {
    for (std::size_t device = 0; device < costs.classes(); ++device) {
      if (counts[device] == 0) continue;
      for (std::size_t next = 0; next <= costs.classes(); ++next) {
        if (next < costs.classes() && counts[next] == 0) continue;
        for (std::size_t end = 1; end <= costs.items(); ++end) {
          most_period_ = std::max(most_period_, costs.busy(device, next, 0, end, true));
        }
      }
    }
  }

  std::optional<LayerPipeline> run() {
    const std::int64_t all = total_of(counts_);
    const std::vector<TieCase> cases = tie_cases(costs_, counts_);
    if (leave_out_ && costs_.needs_stages()) {
      const std::int64_t most = std::min(all, static_cast<std::int64_t>(costs_.items()));
      for (std::int64_t stages = 1; stages <= most; ++stages) search(cases, stages);
    } else {
      search(cases, 0);
    }
    return std::move(pipeline_);
  }

 private:
  void search(const std::vector<TieCase>& cases, std::int64_t stages) {
    StageSearch stage_search(costs_, counts_, micro_batches_, stages, leave_out_);
    stages_ = &stage_search;
    for (const TieCase& ties : cases) {
      if (stage_search.fits(ties.blocked)) search(ties);
    }
  }

  // Returns the sum with which a pipeline of this period takes as long as the best one.
  double sum_for(double period) const {
    return best_ < kInfinity ? costs_.chunks() * (best_ - weight_ * period) * (1 + kPipelineRounding) : kInfinity;
  }

  std::optional<LayerPipeline> probe(const TieCase& ties, double limit, double from) {
    std::optional<std::vector<LayerStage>> stages = stages_->cheapest(ties, limit, sum_for(from));
    if (!stages) return std::nullopt;
    LayerPipeline pipeline = priced(costs_, std::move(*stages), micro_batches_);
    if (pipeline.seconds < best_) {
      best_ = pipeline.seconds;
      pipeline_ = pipeline;
    }
    return pipeline;
  }

  double sum_of(const LayerPipeline& pipeline) const { return pipeline.fill + costs_.chunks() * pipeline.ties; }

  void search(const TieCase& ties) {
    const double least_sum = least_sum_ + costs_.chunks() * ties.least;
    for (double slack = 0.03; best_ == kInfinity && weight_ > 0; slack *= 2) {
      const double limit = least_period_ * (1 + slack);
      const bool all = least_period_ <= 0 || limit >= most_period_;
      if (!probe(ties, all ? most_period_ : limit, least_period_) && all) return;
    }
    const double limit = weight_ > 0 ? (best_ - least_sum / costs_.chunks()) / weight_ : kInfinity;
    const std::optional<LayerPipeline> widest = probe(ties, std::min(limit, most_period_), least_period_);
    if (!widest || weight_ <= 0) return;
    const std::vector<double> limits = candidates(widest->period);
    if (limits.empty()) return;
    std::vector<Interval> open;
    add(open, limits, 0, limits.size(), sum_of(*widest));
    while (!open.empty()) {
      const auto next = std::ranges::min_element(open, {}, &Interval::bound);
      const Interval interval = *next;
      open.erase(next);
      if (interval.bound >= best_ * (1 - kPipelineRounding)) return;
      const std::size_t middle = interval.first + (interval.last - interval.first) / 2;
      const std::optional<LayerPipeline> found = probe(ties, limits[middle], limits[interval.first]);
      add(open, limits, middle + 1, interval.last + 1, interval.least_sum);
      if (!found) continue;
      const auto settled = std::lower_bound(limits.begin(), limits.end(), found->period) - limits.begin();
      add(open, limits, interval.first, static_cast<std::size_t>(settled), sum_of(*found));
    }
  }

  void add(std::vector<Interval>& open, const std::vector<double>& limits, std::size_t first, std::size_t past,
           double least_sum) const {
    if (first >= past) return;
    open.push_back({first, past - 1, least_sum, weight_ * limits[first] + least_sum / costs_.chunks()});
  }

  // Returns the seconds that stages can take, from the least period to below `below`, in order.
  std::vector<double> candidates(double below) const {
    std::vector<double> found;
    for (std::size_t device = 0; device < costs_.classes(); ++device) {
      if (counts_[device] == 0) continue;
      for (std::size_t next = 0; next <= costs_.classes(); ++next) {
        if (next < costs_.classes() && counts_[next] == 0) continue;
        for (const bool recompute : {false, true}) collect(device, next, recompute, below, found);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  void collect(std::size_t device, std::size_t next, bool recompute, double below, std::vector<double>& found) const {
    if (!costs_.allows(recompute)) return;
    const double least = least_period_ * (1 - kPipelineRounding);
    for (std::size_t end = 1; end <= costs_.items(); ++end) {
      for (std::size_t begin = end; begin-- > 0;) {
        const double seconds = costs_.busy(device, next, begin, end, recompute);
        if (seconds >= below) break;
        if (seconds >= least) found.push_back(seconds);
      }
    }
  }

  const LayerCosts& costs_;
  const std::vector<std::int64_t>& counts_;
  std::int64_t micro_batches_;
  bool leave_out_;
  double weight_;
  double least_period_;
  double most_period_ = 0;
  double least_sum_;
  double best_;
  std::optional<LayerPipeline> pipeline_;
  StageSearch* stages_ = nullptr;
};

}  // namespace

std::vector<TieCase> tie_cases(const LayerCosts& costs, const std::vector<std::int64_t>& counts) {
  std::vector<TieCase> cases(1);
  cases.front().blocked.assign(costs.items() + 1, 0);
  cases.front().lowest.assign(costs.classes(), std::vector<std::size_t>(costs.items() + 1, 0));
  for (const LayerTie& tie : costs.request().ties) {
    std::vector<TieCase> next;
    for (const TieCase& each : cases) Ways(costs, counts, tie).extend(each, next);
    cases = std::move(next);
  }
  return cases;
}

std::optional<LayerPipeline> best_pipeline(const LayerCosts& costs, const std::vector<std::int64_t>& counts,
                                           std::int64_t micro_batches, bool leave_out, double cutoff) {
  return PipelineSearch(costs, counts, micro_batches, leave_out, cutoff).run();
}

bool pipeline_fits(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches,
                   bool leave_out, double extra_bytes) {
  const std::int64_t all = total_of(counts);
  const bool counted = leave_out && costs.needs_stages();
  const std::vector<TieCase> cases = tie_cases(costs, counts);
  for (std::int64_t stages = counted ? 1 : 0; stages <= (counted ? all : 0); ++stages) {
    const StageSearch search(costs, counts, micro_batches, stages, leave_out, extra_bytes);
    for (const TieCase& ties : cases) {
      if (search.fits(ties.blocked)) return true;
    }
  }
  return false;
}

double pipeline_bound(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches) {
  const double period = std::max(costs.spread(counts), costs.longest_item(counts));
  return costs.weight_of_busy(micro_batches) * period + costs.least_fill(counts) / costs.chunks();
}

}  // namespace atl::plan
