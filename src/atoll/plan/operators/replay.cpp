// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/replay.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "atoll/plan/operators/guard.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

class Replay {
 public:
  Replay(const OperatorGraph& graph, const Trace& trace, const RobotPower& power, std::span<const OperatorPlan> plans,
         const ReplayOptions& options)
      : graph_(graph), trace_(trace), power_(power), plans_(plans), options_(options) {
    for (const OperatorPlan& plan : plans) guards_.emplace_back(graph, plan.shares);
  }

  std::vector<Served> run(const Chooser& choose) {
    const double end = options_.begin + (options_.length > 0 ? options_.length : trace_.seconds());
    std::vector<Served> result;
    for (std::int64_t turn = 0;; ++turn) {
      const double now = next_begin(result, turn);
      if (now >= end - kRounding) return result;
      if (result.size() == kMax) {
        refuse("more than " + std::to_string(kMax) + " inferences begin within " + number(end - options_.begin) +
               " s: give a longer period, or a shorter time");
      }
      result.push_back(serve(now, choose));
      if (options_.period > 0 || result.back().seconds > 0) continue;
      refuse("an inference takes no time, so the replay would not end: give a period above 0");
    }
  }

 private:
  static constexpr double kRounding = 1e-9;
  static constexpr std::size_t kMax = 1'000'000;  // inferences

  double next_begin(const std::vector<Served>& before, std::int64_t turn) const {
    if (before.empty()) return options_.begin;
    if (options_.is_apart) return options_.begin + static_cast<double>(turn) * options_.period;
    const Served& last = before.back();
    const double answer = last.begin + last.seconds;
    if (options_.period == 0) return answer;
    const double periods = std::ceil((answer - options_.begin) / options_.period - kRounding);
    const double gone = std::round((last.begin - options_.begin) / options_.period);
    return options_.begin + std::max(periods, gone + 1) * options_.period;  // even if it took no time
  }

  Served serve(double now, const Chooser& choose) {
    const auto seen = std::ranges::upper_bound(seen_, now, {}, &SeenRate::time);
    const double bin = trace_.bin_seconds();
    const SeenRate last_bin{std::floor(now / bin + kRounding) * bin, trace_.rate_before(Lane::kUp, now)};
    const Choice choice = choose({now, last_bin, {seen_.begin(), seen}});
    const OperatorPlan& plan = plans_[choice.plan];
    const Channel link = trace_.channel(now, options_.latency, options_.is_half_duplex);
    const Timeline timeline = simulate(graph_, link, power_, plan.shares, plan.chunks);
    Served served{now, timeline.seconds, choice.predicted, choice.plan};
    double link_end = timeline.seconds;
    served.robot_busy = timeline.robot_busy;
    if (options_.deadline) {
      const Guarded guarded = guards_[choice.plan].watch(timeline, options_.latency, *options_.deadline);
      served.seconds = guarded.seconds;
      served.is_local = guarded.is_local;
      served.is_guarded = std::isfinite(guarded.local_begin);
      served.robot_busy = guarded.robot_busy;
      link_end = guarded.link_end;
    }
    if (!std::isfinite(served.seconds)) {
      refuse("the inference that begins " + number(now) + " s into the trace is never answered by the plan " +
             plan.policy + ", because nothing gets through: give a deadline, so that the robot answers");
    }
    count_events(timeline, link_end, served);
    served.joules = joules(power_, served.seconds, served.robot_busy, served.link_busy);
    return served;
  }

  // Adds what server and link did until `end`, and the rates that messages had.
  void count_events(const Timeline& timeline, double end, Served& served) {
    for (const Event& event : timeline.events) {
      const double until = std::min(event.end, end);
      if (event.lane == Lane::kRobot || !(until > event.begin)) continue;
      if (event.lane == Lane::kServer) {
        served.server_busy += until - event.begin;
        continue;
      }
      served.link_busy += until - event.begin;
      const double bytes = trace_.bytes(event.lane, served.begin + event.begin, served.begin + until);
      (event.lane == Lane::kUp ? served.up_bytes : served.down_bytes) += bytes;
      if (event.lane != Lane::kUp) continue;
      const SeenRate seen{served.begin + until, bytes / (until - event.begin)};
      seen_.insert(std::ranges::upper_bound(seen_, seen.time, {}, &SeenRate::time), seen);
    }
  }

  const OperatorGraph& graph_;
  const Trace& trace_;
  const RobotPower& power_;
  std::span<const OperatorPlan> plans_;
  const ReplayOptions& options_;
  std::vector<Guard> guards_;
  std::vector<SeenRate> seen_;  // in order of time
};

}  // namespace

Chooser choose_by_forecast(const PlanTable& table, const LinkPast& past, const ChooserOptions& options) {
  return [&table, &past, options](const Moment& moment) -> Choice {
    const std::span<const SeenRate> seen =
        options.sees_every_bin ? std::span<const SeenRate>(&moment.last_bin, 1) : moment.seen;
    const std::vector<RateWeight> likely = forecast(options.forecast, past, seen, moment.now);
    const std::size_t plan = table.choose(likely, options.quantile, options.most_seconds);
    return {plan, table.seconds_over(plan, likely, {}, options.most_seconds)};
  };
}

Chooser choose_by_rate(std::vector<double> rates, std::vector<double> predicted) {
  return [rates = std::move(rates), predicted = std::move(predicted)](const Moment& moment) -> Choice {
    const auto above = std::upper_bound(rates.begin(), rates.end(), moment.last_bin.rate);
    const auto plan = static_cast<std::size_t>(above - rates.begin());
    return {plan, predicted[plan]};
  };
}

Chooser choose_by_oracle(const OperatorGraph& graph, const Trace& trace, const PlanTable& table) {
  return [&graph, &trace, &table](const Moment& moment) -> Choice {
    const Channel link = trace.channel(moment.now, table.link.latency, table.link.is_half_duplex);
    Choice best{0, kInfinity};
    for (std::size_t i = 0; i < table.plans.size(); ++i) {
      const OperatorPlan& plan = table.plans[i];
      const double seconds = simulate(graph, link, {}, plan.shares, plan.chunks).seconds;
      if (seconds < best.predicted) best = {i, seconds};
    }
    return best;
  };
}

std::vector<Served> replay(const OperatorGraph& graph, const Trace& trace, const RobotPower& power,
                           std::span<const OperatorPlan> plans, const Chooser& choose, const ReplayOptions& options) {
  check(graph);
  require_amount("the link's latency", options.latency);
  require_amount("the beginning of a replay", options.begin);
  require_amount("the length of a replay", options.length);
  require_amount("the period of a replay", options.period);
  if (options.deadline) require_amount("the deadline", *options.deadline);
  if (options.is_apart && options.period == 0) {
    refuse("inferences that are apart begin every 0 s: give a period above 0");
  }
  return Replay(graph, trace, power, plans, options).run(choose);
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto quantile = [&](double share) {
    return values[static_cast<std::size_t>(std::max(0.0, std::ceil(share * count) - 1))];
  };
  Spread spread;
  for (const double value : values) spread.mean += value / count;
  for (const double value : values) spread.deviation += (value - spread.mean) * (value - spread.mean) / count;
  spread.deviation = std::sqrt(spread.deviation);
  spread.median = quantile(0.5);
  spread.p95 = quantile(0.95);
  spread.p99 = quantile(0.99);
  spread.most = values.back();
  return spread;
}

}  // namespace atl::plan
