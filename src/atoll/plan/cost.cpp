// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/cost.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {

Cost Cost::affine(double fixed, double per_sample) {
  require_amount("the cost's fixed time", fixed);
  require_amount("the cost's time per sample", per_sample);
  Cost cost;
  cost.fixed_ = fixed;
  cost.per_sample_ = per_sample;
  return cost;
}

Cost Cost::saturating(double fixed, double per_sample, double knee) {
  require_amount("the cost's knee", knee);
  Cost cost = affine(fixed, per_sample);
  cost.shape_ = Shape::kSaturating;
  cost.knee_ = knee;
  return cost;
}

Cost Cost::staircase(std::int64_t step, double per_launch, double per_sample) {
  if (step < 1 || step > kUnbounded) {
    refuse("the cost's step is " + counted(step, "sample") + ": give at least 1");
  }
  require_amount("the cost's time per launch", per_launch);
  Cost cost = affine(per_launch, per_sample);
  cost.shape_ = Shape::kStaircase;
  cost.step_ = static_cast<double>(step);
  return cost;
}

Cost Cost::table(std::vector<Point> points) {
  if (points.empty()) refuse("a cost's table has no points: give at least one [batch, seconds]");
  for (const Point& point : points) {
    require_amount("a batch of the cost's table", point.batch);
    require_amount("a time of the cost's table", point.seconds);
    if (point.batch < 1) refuse("a batch of the cost's table is " + number(point.batch) + ": give at least 1 sample");
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.batch < b.batch || (a.batch == b.batch && a.seconds < b.seconds);
  });
  Cost cost;
  cost.shape_ = Shape::kTable;
  for (const Point& point : points) {
    if (cost.points_.empty()) {
      cost.points_.push_back(point);
      continue;
    }
    const double highest = std::max(point.seconds, cost.points_.back().seconds);
    if (point.batch == cost.points_.back().batch) {
      cost.points_.back().seconds = highest;
    } else {
      cost.points_.push_back({point.batch, highest});
    }
  }
  const Point& first = cost.points_.front();
  cost.below_slope_ = first.seconds / first.batch;
  if (cost.points_.size() > 1) {
    const Point& second = cost.points_[1];
    cost.below_slope_ = std::min(cost.below_slope_, (second.seconds - first.seconds) / (second.batch - first.batch));
  }
  return cost;
}

Cost Cost::scaled(double factor) const {
  if (!std::isfinite(factor) || factor <= 0) {
    refuse("a cost is scaled by " + number(factor) + ": give a finite factor above 0");
  }
  Cost cost = *this;
  cost.factor_ *= factor;
  return cost;
}

Cost Cost::overlapped(double forward_share, std::vector<Bucket> buckets) const {
  if (!(forward_share >= 0 && forward_share <= 1)) {
    refuse("the forward pass's share is " + number(forward_share) + ": give a share from 0 to 1");
  }
  for (const Bucket& bucket : buckets) {
    require_amount("a bucket's time", bucket.seconds);
    if (bucket.ready >= 0 && bucket.ready <= 1) continue;
    refuse("a bucket is ready at " + number(bucket.ready) + " of the backward pass: give a share from 0 to 1");
  }
  Cost cost = *this;
  cost.forward_share_ = forward_share;
  cost.buckets_ = std::move(buckets);
  cost.terms_.clear();
  double rest = 0;
  for (auto bucket = cost.buckets_.rbegin(); bucket != cost.buckets_.rend(); ++bucket) {
    rest += bucket->seconds;
    const Term term{forward_share + bucket->ready * (1 - forward_share), rest};
    // Going backwards the rest only grows, so a term whose share is not larger than that of the new one never decides.
    std::erase_if(cost.terms_, [&term](const Term& old) { return old.share <= term.share; });
    cost.terms_.push_back(term);
  }
  return cost;
}

Cost Cost::compute_only() const {
  Cost cost = *this;
  cost.forward_share_ = 0;
  cost.buckets_.clear();
  cost.terms_.clear();
  return cost;
}

double Cost::table_seconds(double batch) const {
  const Point& first = points_.front();
  if (batch <= first.batch) return std::max(0.0, first.seconds - below_slope_ * (first.batch - batch));
  const auto above = std::lower_bound(points_.begin(), points_.end(), batch,
                                      [](const Point& point, double value) { return point.batch < value; });
  if (above == points_.end()) {
    const Point& last = points_.back();
    double slope = below_slope_;
    if (points_.size() > 1) {
      const Point& before = points_[points_.size() - 2];
      slope = (last.seconds - before.seconds) / (last.batch - before.batch);
    }
    return last.seconds + slope * (batch - last.batch);
  }
  const Point& low = *(above - 1);
  const double share = (batch - low.batch) / (above->batch - low.batch);
  return std::min(above->seconds, low.seconds + (above->seconds - low.seconds) * share);
}

double Cost::shape_seconds(double batch) const {
  switch (shape_) {
    case Shape::kAffine: return fixed_ + per_sample_ * batch;
    case Shape::kSaturating: return fixed_ + per_sample_ * std::max(batch, knee_);
    case Shape::kStaircase: return std::ceil(batch / step_) * (fixed_ + per_sample_ * step_);
    case Shape::kTable: return table_seconds(batch);
  }
  return 0;
}

double Cost::compute_seconds(std::int64_t batch) const {
  if (batch < 0) refuse("a batch has " + counted(batch, "sample") + ": give at least 0");
  return batch == 0 ? 0 : factor_ * shape_seconds(static_cast<double>(batch));
}

double Cost::seconds(std::int64_t batch) const {
  const double compute = compute_seconds(batch);
  double longest = compute;
  for (const Term& term : terms_) longest = std::max(longest, term.share * compute + term.rest);
  return longest;
}

double Cost::table_guess(double limit) const {
  const auto above = std::upper_bound(points_.begin(), points_.end(), limit,
                                      [](double value, const Point& point) { return value < point.seconds; });
  if (above == points_.begin()) {
    const Point& first = points_.front();
    return below_slope_ > 0 ? first.batch - (first.seconds - limit) / below_slope_ : 0;
  }
  const Point& low = *(above - 1);
  if (above == points_.end()) {
    const double slope = table_seconds(low.batch + 1) - low.seconds;
    return slope > 0 ? low.batch + (limit - low.seconds) / slope : kInfinity;
  }
  return low.batch + (limit - low.seconds) / (above->seconds - low.seconds) * (above->batch - low.batch);
}

// The closed form may be wrong by a sample or two because of rounding.
double Cost::guess_of(double limit) const {
  double compute = limit;
  for (const Term& term : terms_) {
    if (term.share > 0) compute = std::min(compute, (limit - term.rest) / term.share);
  }
  compute /= factor_;
  switch (shape_) {
    case Shape::kAffine: return per_sample_ > 0 ? (compute - fixed_) / per_sample_ : kInfinity;
    case Shape::kSaturating:
      if (compute < fixed_ + per_sample_ * knee_) return 0;
      return per_sample_ > 0 ? (compute - fixed_) / per_sample_ : kInfinity;
    case Shape::kStaircase: {
      const double launch = fixed_ + per_sample_ * step_;
      return launch > 0 ? std::floor(compute / launch) * step_ : kInfinity;
    }
    case Shape::kTable: return table_guess(compute);
  }
  return 0;
}

std::int64_t Cost::most_within(double limit, std::int64_t cap) const {
  if (cap < 0 || !(seconds(0) <= limit)) return -1;
  std::int64_t good = 0;
  std::int64_t bad = std::min(cap, kUnbounded) + 1;
  const double guessed = guess_of(limit);
  std::int64_t guess =
      guessed > 0 ? static_cast<std::int64_t>(std::min(guessed, static_cast<double>(bad - 1))) : std::int64_t{1};
  bool rose = false;
  bool fell = false;
  // Gallops away from the guess until the answer is between two probes, then bisects.
  for (std::int64_t stride = 1; bad - good > 1; stride *= 2) {
    guess = std::clamp(rose && fell ? good + (bad - good) / 2 : guess, good + 1, bad - 1);
    if (seconds(guess) <= limit) {
      good = guess;
      rose = true;
      guess += stride;
    } else {
      bad = guess;
      fell = true;
      guess -= stride;
    }
    if (stride > kUnbounded) stride = kUnbounded;
  }
  return good;
}

const char* Cost::shape() const noexcept {
  switch (shape_) {
    case Shape::kAffine: return "affine";
    case Shape::kSaturating: return "saturating";
    case Shape::kStaircase: return "staircase";
    case Shape::kTable: return "table";
  }
  return "affine";
}

}  // namespace atl::plan
