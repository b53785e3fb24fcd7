// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/adapter.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Batches = std::vector<std::int64_t>;

constexpr double kWeight = 0.2;
constexpr double kUsualWeight = 0.05;
constexpr int kWindowsOfMean = 20;  // 1 / kUsualWeight: an average is the mean until its weight falls to its least
constexpr double kSlack = 0.5;
constexpr double kLimit = 5;
constexpr std::size_t kResiduals = 20;
constexpr std::size_t kFewResiduals = 5;
constexpr double kFirstDeviation = 0.05;  // used until there are a few residuals
constexpr double kMinDeviation = 0.005;
constexpr double kLn2 = 0.69314718055994530942;

void check(const AdapterOptions& options) {
  require_amount("the gain that a new plan needs", options.gain);
  require_amount("the seconds that a change costs", options.switch_seconds);
  if (options.windows < 1) refuse("windows is " + std::to_string(options.windows) + ": give at least 1");
  if (options.interval < 1) refuse("the interval is " + std::to_string(options.interval) + ": give at least 1 window");
  if (options.changes_per_epoch < 0) {
    refuse("changes_per_epoch is " + std::to_string(options.changes_per_epoch) + ": give at least 0");
  }
  if (options.replay.empty()) return;
  if (options.replay.front().step != 0) refuse("a replay begins at step 0 with the first plan");
  for (std::size_t i = 1; i < options.replay.size(); ++i) {
    if (options.replay[i].step > options.replay[i - 1].step) continue;
    refuse("a replay goes from step " + std::to_string(options.replay[i - 1].step) + " to step " +
           std::to_string(options.replay[i].step) + ": steps must rise");
  }
}

void check(const Window& window, const std::vector<std::string>& names) {
  if (window.ranks.size() != names.size()) {
    refuse("a window has observations of " + counted(window.ranks.size(), "rank") + ", but the plan has " +
           std::to_string(names.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Observation& seen = window.ranks[i];
    if (seen.batch < 0) refuse(rank_name(i, names) + " observed a batch of " + std::to_string(seen.batch));
    if (seen.batch == 0 || (std::isfinite(seen.seconds) && seen.seconds > 0)) continue;
    refuse(rank_name(i, names) + " observed " + number(seen.seconds) + " s for " + counted(seen.batch, "sample") +
           ": give a finite time above 0");
  }
}

void update(Metrics& metrics, const Metrics& seen) {
  if (seen.ops) metrics.ops = seen.ops;
  if (seen.memory_used) metrics.memory_used = seen.memory_used;
  if (seen.latency) metrics.latency = seen.latency;
  if (!seen.latencies.empty()) metrics.latencies = seen.latencies;
}

// 1.4826 times the median distance from zero: a robust estimate of the standard deviation, despite a few outliers.
double deviation_of(const std::vector<double>& residuals) {
  if (residuals.size() < kFewResiduals) return kFirstDeviation;
  std::vector<double> distances;
  for (const double residual : residuals) distances.push_back(std::abs(residual));
  std::sort(distances.begin(), distances.end());
  const std::size_t middle = distances.size() / 2;
  const double median = distances.size() % 2 == 1 ? distances[middle] : (distances[middle - 1] + distances[middle]) / 2;
  return std::max(kMinDeviation, 1.4826 * median);
}

double per_sample(const BatchPlan& plan) {
  return plan.step / static_cast<double>(std::max<std::int64_t>(1, plan.total));
}

double saved_share(double now, double next) { return now > 0 ? 1 - next / now : 0; }

// The relative saving of time per sample; under the policy energy of joules, unless the plan takes longer than that
// policy allows.
double gain_of(const Request& request, const BatchPlan& now, const BatchPlan& next) {
  const double time = saved_share(per_sample(now), per_sample(next));
  if (request.policy != "energy" || !now.joules_per_sample || !next.joules_per_sample) return time;
  const double joules = saved_share(*now.joules_per_sample, *next.joules_per_sample);
  return now.step > now.bound * (1 + request.slowdown) ? std::max(time, joules) : joules;
}

}  // namespace

double natural_log(double value) {
  int exponent = 0;
  double mantissa = std::frexp(value, &exponent);  // in [0.5, 1)
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);  // ln(m) = 2 (z + z^3/3 + z^5/5 + ...)
  double sum = 0;
  for (int k = 21; k > 0; k -= 2) sum = sum * z * z + 1.0 / k;
  return exponent * kLn2 + 2 * z * sum;
}

bool SpeedEstimate::observe(double ratio) {
  const bool is_first = windows == 0;
  const double residual = natural_log(ratio / usual);
  const double units = residual / deviation_of(residuals);
  risen = std::max(0.0, risen + units - kSlack);
  fallen = std::max(0.0, fallen - units - kSlack);
  if (is_first || risen > kLimit || fallen > kLimit) {
    *this = {ratio, ratio, 1, 0, 0, std::move(residuals)};
    return !is_first;
  }
  residuals.push_back(residual);
  if (residuals.size() > kResiduals) residuals.erase(residuals.begin());
  windows = std::min(windows + 1, kWindowsOfMean);
  factor += (ratio - factor) * std::max(kWeight, 1.0 / windows);
  usual += (ratio - usual) * std::max(kUsualWeight, 1.0 / windows);
  return false;
}

Adapter::Adapter(Request request, AdapterOptions options)
    : request_(std::move(request)), current_(request_), options_(std::move(options)) {
  check(options_);
  speeds_.resize(request_.ranks.size());
  const BatchPlan first = plan_batches(current_);
  adopt(0, options_.replay.empty() ? first.batches : options_.replay.front().batches);
  if (options_.replay.empty()) plan_.notes = first.notes;
}

void Adapter::adopt(std::int64_t step, Batches batches) {
  plan_ = evaluate(current_, batches);
  history_.push_back({step, std::move(batches)});
}

void Adapter::take_in(const Window& window, Decision& decision) {
  for (std::size_t i = 0; i < speeds_.size(); ++i) {
    const Observation& seen = window.ranks[i];
    Rank& rank = request_.ranks[i];
    update(rank.metrics, seen.metrics);
    const double expected = rank.cost.compute_seconds(seen.batch);
    const double ratio = expected > 0 ? seen.seconds / expected : 0;
    decision.drift.push_back(ratio > 0 && std::isfinite(ratio) && speeds_[i].observe(ratio));
    decision.factors.push_back(speeds_[i].factor);
    current_.ranks[i].metrics = rank.metrics;
    current_.ranks[i].cost = rank.cost.scaled(speeds_[i].factor);
  }
  ++windows_;
  if (window.epoch != epoch_) changes_in_epoch_ = 0;
  epoch_ = window.epoch;
}

Batches Adapter::replayed(std::int64_t step) const {
  const PlanChange* latest = &options_.replay.front();
  for (const PlanChange& change : options_.replay) {
    if (change.step <= step) latest = &change;
  }
  return latest->batches == history_.back().batches ? Batches{} : latest->batches;
}

Batches Adapter::decide(const Window& window, Decision& decision) {
  if (!options_.replay.empty()) {
    decision.reason = "replayed";
    return replayed(window.step);
  }
  if (windows_ % options_.interval != 0) {
    decision.reason = "kept until the next planning";
    return {};
  }
  current_.epoch = request_.epoch + windows_;  // the policy random draws again
  BatchPlan next = plan_batches(current_);
  const BatchPlan now = evaluate(current_, history_.back().batches);
  const double saved = per_sample(now) - per_sample(next);  // seconds
  decision.gain = gain_of(current_, now, next);
  wins_ = decision.gain > options_.gain ? wins_ + 1 : 0;
  if (options_.frozen) {
    decision.reason = "kept: frozen";
  } else if (next.batches == history_.back().batches) {
    decision.reason = "kept: the policy gives the same batches";
  } else if (options_.changes_per_epoch > 0 && changes_in_epoch_ >= options_.changes_per_epoch) {
    decision.reason = "kept: " + counted(changes_in_epoch_, "change") + " in this epoch already";
  } else if (!options_.hysteresis) {
    decision.reason = "adopted without hysteresis";
    return std::move(next.batches);
  } else if (wins_ == 0) {
    decision.reason = "kept: a new plan saves " + percent(decision.gain) + ", not " + percent(options_.gain);
  } else if (wins_ < options_.windows) {
    decision.reason = "kept: a new plan must win " + counted(options_.windows, "time") + " in a row";
  } else if (request_.policy != "energy" &&
             saved * static_cast<double>(next.total) * static_cast<double>(window.remaining) <=
                 options_.switch_seconds) {
    decision.reason = "kept: the steps that remain save less than a change costs";
  } else {
    decision.reason = "adopted: it saves " + percent(decision.gain);
    if (request_.policy == "energy") decision.reason += " of the energy or the time";
    return std::move(next.batches);
  }
  return {};
}

Decision Adapter::observe(const Window& window) {
  check(window, names_of(request_.ranks));
  Adapter next = *this;  // an exception must change nothing
  Decision decision;
  next.take_in(window, decision);
  Batches batches = next.decide(window, decision);
  decision.changed = !batches.empty();
  if (decision.changed) {
    next.wins_ = 0;
    ++next.changes_in_epoch_;
    next.adopt(window.step, std::move(batches));
  } else {
    next.plan_ = evaluate(next.current_, next.history_.back().batches);
  }
  decision.version = next.version();
  *this = std::move(next);
  return decision;
}

}  // namespace atl::plan
