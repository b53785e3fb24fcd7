// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/envelope.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the bytes that take as long upwards as these do in both directions.
double bytes_as_up(const LinkCost& link, double up, double down) {
  return up + down * link.up_bytes_per_second / link.down_bytes_per_second;
}

// Interpolates on the line over 1 / rate through two points.
double between(double rate, double low_rate, double low_seconds, double high_rate, double high_seconds) {
  const double share = (1 / rate - 1 / high_rate) / (1 / low_rate - 1 / high_rate);
  return high_seconds + share * (low_seconds - high_seconds);
}

// Returns the first of some times that is within the margin of the least.
std::size_t simplest(const std::vector<double>& seconds, double margin) {
  const double limit = *std::min_element(seconds.begin(), seconds.end()) * (1 + margin);
  const auto found = std::find_if(seconds.begin(), seconds.end(), [&](double value) { return value <= limit; });
  return static_cast<std::size_t>(found - seconds.begin());
}

double mean(const std::vector<double>& seconds, std::span<const RateWeight> likely) {
  double sum = 0;
  double weights = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (likely[i].weight == 0) continue;  // its time may be infinite
    sum += likely[i].weight * seconds[i];
    weights += likely[i].weight;
  }
  return sum / weights;
}

double quantile_of(const std::vector<double>& seconds, std::span<const RateWeight> likely, double quantile) {
  std::vector<std::pair<double, double>> sorted;
  double left = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (likely[i].weight == 0) continue;
    sorted.emplace_back(seconds[i], likely[i].weight);
    left += likely[i].weight;
  }
  std::sort(sorted.begin(), sorted.end());
  left *= quantile;
  for (const auto& [value, weight] : sorted) {
    left -= weight;
    if (left <= 0) return value;
  }
  return sorted.back().first;  // rounding
}

class TableMaker {
 public:
  TableMaker(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, const TableOptions& options)
      : graph_(graph), link_(link), power_(power), options_(options) {
    const double ratio = options.most_rate / options.least_rate;
    for (int i = 0; i < options.rates; ++i) {
      rates_.push_back(options.least_rate * std::pow(ratio, static_cast<double>(i) / (options.rates - 1)));
    }
  }

  PlanTable make() {
    add("local", everything_on(Side::kRobot, graph_), 1);
    add("offload", everything_on(Side::kServer, graph_), 1);
    add("stream", everything_on(Side::kServer, graph_), options_.search.chunks);
    add_cuts();
    const bool is_complete = add_regions();
    return chosen(is_complete);
  }

 private:
  struct Candidate {
    OperatorPlan plan;
    std::vector<double> seconds;  // by rate
  };

  double predicted(const OperatorPlan& plan, std::size_t rate) const {
    return simulate(graph_, link_.at(rates_[rate]), power_, plan.shares, plan.chunks).seconds;
  }

  void add(const char* policy, std::vector<Share> shares, int chunks) {
    for (const Candidate& other : candidates_) {
      if (other.plan.shares == shares && other.plan.chunks == chunks) return;
    }
    Candidate candidate;
    candidate.plan.policy = policy;
    candidate.plan.shares = std::move(shares);
    candidate.plan.chunks = chunks;
    candidate.seconds.resize(rates_.size());
    candidate.seconds.front() = predicted(candidate.plan, 0);
    candidate.seconds.back() = predicted(candidate.plan, rates_.size() - 1);
    fill(candidate, 0, rates_.size() - 1);
    candidates_.push_back(std::move(candidate));
  }

  // A convex function that meets its chord in the middle is equal to it everywhere between.
  void fill(Candidate& candidate, std::size_t low, std::size_t high) const {
    if (high - low < 2) return;
    const std::size_t middle = (low + high) / 2;
    const auto on_line = [&](std::size_t i) {
      return between(rates_[i], rates_[low], candidate.seconds[low], rates_[high], candidate.seconds[high]);
    };
    const double exact = predicted(candidate.plan, middle);
    if (std::abs(exact - on_line(middle)) <= 1e-9 * exact) {
      for (std::size_t i = low + 1; i < high; ++i) candidate.seconds[i] = on_line(i);
      return;
    }
    candidate.seconds[middle] = exact;
    fill(candidate, low, middle);
    fill(candidate, middle, high);
  }

  struct Line {
    double fixed = 0;
    double slope = 0;
    double at(double seconds_per_byte) const noexcept { return fixed + slope * seconds_per_byte; }
  };

  Line add_cut(CutGraph& cuts, double seconds_per_byte) {
    const double down = seconds_per_byte * link_.up_bytes_per_second / link_.down_bytes_per_second;
    LayerCut cut = cuts.cheapest({1, 1, seconds_per_byte, down});
    const Totals& totals = cut.totals;
    const Line line{totals.robot_seconds + totals.server_seconds,
                    bytes_as_up(link_, totals.up_bytes, totals.down_bytes)};
    add("cut", std::move(cut.shares), 1);
    return line;
  }

  void add_corners(CutGraph& cuts, const Line& fast, const Line& slow) {
    constexpr double kTolerance = 1e-9;
    if (fast.slope <= slow.slope) return;
    const double corner = (slow.fixed - fast.fixed) / (fast.slope - slow.slope);
    if (!(corner > 0)) return;
    const Line line = add_cut(cuts, corner);
    if (line.at(corner) >= fast.at(corner) * (1 - kTolerance)) return;
    add_corners(cuts, fast, line);
    add_corners(cuts, line, slow);
  }

  void add_cuts() {
    CutGraph cuts(graph_);
    const Line slow = add_cut(cuts, 1 / rates_.front());
    const Line fast = add_cut(cuts, 1 / rates_.back());
    add_corners(cuts, fast, slow);
  }

  // Returns whether all searches finished in time.
  bool add_regions() {
    const Clock::time_point begin = Clock::now();
    FluidBounds bounds(graph_);
    bool is_complete = true;
    for (int i = 0; i < options_.searches; ++i) {
      const double left = options_.search_seconds - std::chrono::duration<double>(Clock::now() - begin).count();
      if (left <= 0) return false;
      const std::size_t rate =
          (2 * static_cast<std::size_t>(i) + 1) * rates_.size() / (2 * static_cast<std::size_t>(options_.searches));
      const auto seconds = [&](const Candidate& each) { return each.seconds[rate]; };
      const LinkCost link = link_.at(rates_[rate]);
      OperatorPlan best = std::ranges::min_element(candidates_, {}, seconds)->plan;
      predict(graph_, link, power_, best);
      SearchOptions search = options_.search;
      search.margin = options_.margin;
      search.seconds = left / (options_.searches - i);
      RegionPlan found = improve(graph_, link, power_, best, bounds.at(link), search);
      is_complete = is_complete && found.is_complete;
      if (found.plan.policy == "regions") add("regions", std::move(found.plan.shares), found.plan.chunks);
    }
    return is_complete;
  }

  PlanTable chosen(bool is_complete) {
    PlanTable table{link_, rates_, {}, {}, options_.margin, is_complete};
    std::vector<std::vector<std::size_t>> wins(candidates_.size());
    std::vector<double> seconds(candidates_.size());
    for (std::size_t rate = 0; rate < rates_.size(); ++rate) {
      for (std::size_t i = 0; i < candidates_.size(); ++i) seconds[i] = candidates_[i].seconds[rate];
      wins[simplest(seconds, options_.margin)].push_back(rate);
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (i > 0 && wins[i].empty()) continue;
      OperatorPlan plan = std::move(candidates_[i].plan);
      const std::size_t rate = wins[i].empty() ? 0 : wins[i][wins[i].size() / 2];
      predict(graph_, link_.at(rates_[rate]), power_, plan);
      table.plans.push_back(std::move(plan));
      table.seconds.push_back(std::move(candidates_[i].seconds));
    }
    return table;
  }

  const OperatorGraph& graph_;
  const LinkCost& link_;
  const RobotPower& power_;
  const TableOptions& options_;
  std::vector<double> rates_;
  std::vector<Candidate> candidates_;
};

}  // namespace

double PlanTable::seconds_at(std::size_t plan, double rate) const {
  const std::vector<double>& known = seconds[plan];
  const double bytes = bytes_as_up(link, plans[plan].up_bytes, plans[plan].down_bytes);
  if (bytes == 0 || rate >= rates.back()) return known.back();
  if (!(rate > 0)) return HUGE_VAL;
  if (rate <= rates.front()) return known.front() + bytes * (1 / rate - 1 / rates.front());
  const auto next = std::upper_bound(rates.begin(), rates.end(), rate);
  const auto high = static_cast<std::size_t>(next - rates.begin());
  return between(rate, rates[high - 1], known[high - 1], rates[high], known[high]);
}

double PlanTable::seconds_over(std::size_t plan, std::span<const RateWeight> likely, std::optional<double> quantile,
                               double most_seconds) const {
  std::vector<double> times;
  for (const RateWeight& each : likely) times.push_back(std::min(most_seconds, seconds_at(plan, each.rate)));
  return quantile ? quantile_of(times, likely, *quantile) : mean(times, likely);
}

std::size_t PlanTable::choose(std::span<const RateWeight> likely, std::optional<double> quantile,
                              double most_seconds) const {
  if (quantile && !(*quantile > 0 && *quantile <= 1)) {
    refuse("the quantile is " + number(*quantile) + ": give one above 0 and up to 1");
  }
  double weights = 0;
  for (const RateWeight& each : likely) {
    require_amount("a likely rate", each.rate);
    require_amount("the weight of a rate", each.weight);
    weights += each.weight;
  }
  if (!(weights > 0)) refuse("the weights of the likely rates add up to 0: give one above 0");
  std::vector<double> times;
  for (std::size_t i = 0; i < plans.size(); ++i) times.push_back(seconds_over(i, likely, quantile, most_seconds));
  return simplest(times, margin);
}

PlanTable make_table(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                     const TableOptions& options) {
  check(graph);
  check(link);
  if (options.rates < 2) refuse("a table of plans has " + counted(options.rates, "rate") + ": give at least 2");
  if (!(options.least_rate > 0 && options.least_rate < options.most_rate && std::isfinite(options.most_rate))) {
    refuse("the rates of a table of plans go from " + number(options.least_rate) + " to " + number(options.most_rate) +
           " bytes per second: they must ascend from above 0");
  }
  return TableMaker(graph, link, power, options).make();
}

}  // namespace atl::plan
