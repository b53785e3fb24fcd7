// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/cost.h"

#include <algorithm>
#include <cmath>

#include "atoll/json/fields.h"
#include "atoll/plan/cost_json.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {

using json::Fields;
using json::Json;

namespace {

constexpr double kGoodError = 0.03;
constexpr int kKneesPerSegment = 64;

struct Line {
  double fixed = 0;
  double per_sample = 0;
};

void check(const std::vector<Point>& points) {
  if (points.empty()) refuse("a fit has no points: give at least one [batch, seconds]");
  for (const Point& point : points) {
    if (std::isfinite(point.batch) && point.batch >= 1 && std::isfinite(point.seconds) && point.seconds > 0) continue;
    refuse("a measured point is [" + number(point.batch) + ", " + number(point.seconds) +
           "]: give a batch of at least 1 and a time above 0");
  }
}

double error_of(const Cost& cost, const std::vector<Point>& points) {
  double sum = 0;
  for (const Point& point : points) {
    const double seconds = cost.seconds(static_cast<std::int64_t>(point.batch));
    const double relative = seconds / point.seconds - 1;
    sum += relative * relative;
  }
  return std::sqrt(sum / static_cast<double>(points.size()));
}

// Least squares of the relative differences over x = max(batch, knee): sum of ((a + c x) / t - 1)^2, a and c >= 0. If
// the best line has a negative parameter, the better of the two edges is optimal, because the sum is convex.
Line fit_line(const std::vector<Point>& points, double knee) {
  double w = 0;
  double wx = 0;
  double wxx = 0;
  double v = 0;
  double vx = 0;
  for (const Point& point : points) {
    const double x = std::max(point.batch, knee);
    const double inverse = 1 / point.seconds;
    w += inverse * inverse;
    wx += inverse * inverse * x;
    wxx += inverse * inverse * x * x;
    v += inverse;
    vx += inverse * x;
  }
  const double determinant = w * wxx - wx * wx;
  if (determinant > 1e-12 * w * wxx) {
    const Line line{(v * wxx - vx * wx) / determinant, (w * vx - wx * v) / determinant};
    if (line.fixed >= 0 && line.per_sample >= 0) return line;
  } else {
    return {0, vx / wxx};
  }
  const double through_zero = vx / wxx;
  const double level = v / w;
  // The sum of squares of each edge is the number of points minus these.
  return through_zero * vx >= level * v ? Line{0, through_zero} : Line{level, 0};
}

Fit fit_saturating(const std::vector<Point>& points, const std::vector<double>& batches) {
  Fit best;
  best.error = HUGE_VAL;
  for (std::size_t i = 1; i + 2 < batches.size(); ++i) {
    for (int part = 0; part <= kKneesPerSegment; ++part) {
      const double knee = batches[i] + (batches[i + 1] - batches[i]) * part / kKneesPerSegment;
      const Line line = fit_line(points, knee);
      const Cost cost = Cost::saturating(line.fixed, line.per_sample, knee);
      const double error = error_of(cost, points);
      if (error < best.error) best = {cost, error};
    }
  }
  return best;
}

Fit fit_table(const std::vector<Point>& points, const std::vector<double>& batches) {
  std::vector<Point> means;
  for (const double batch : batches) {
    double sum = 0;
    int count = 0;
    for (const Point& point : points) {
      if (point.batch != batch) continue;
      sum += point.seconds;
      ++count;
    }
    means.push_back({batch, sum / count});
  }
  const Cost cost = Cost::table(std::move(means));
  return {cost, error_of(cost, points)};
}

}  // namespace

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
  std::ranges::sort(points, {}, &Point::batch);
  Cost cost;
  cost.shape_ = Shape::kTable;
  double highest = 0;
  for (const Point& point : points) {
    highest = std::max(highest, point.seconds);
    if (!cost.points_.empty() && cost.points_.back().batch == point.batch) cost.points_.pop_back();
    cost.points_.push_back({point.batch, highest});
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

double Cost::table_seconds(double batch) const {
  const Point& first = points_.front();
  if (batch <= first.batch) return std::max(0.0, first.seconds - below_slope_ * (first.batch - batch));
  const auto above = std::ranges::lower_bound(points_, batch, {}, &Point::batch);
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
    case Shape::kAffine:
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

std::int64_t Cost::most_within(double limit, std::int64_t cap) const {
  if (cap < 0 || !(seconds(0) <= limit)) return -1;
  const auto is_within = [&](std::int64_t batch) { return seconds(batch) <= limit; };
  return last_that<std::int64_t>(0, std::min(cap, kUnbounded), is_within);
}

const char* Cost::shape() const noexcept {
  constexpr const char* kNames[] = {"affine", "saturating", "staircase", "table"};
  return kNames[static_cast<int>(shape_)];
}

Fit fit_affine(const std::vector<Point>& points) {
  check(points);
  const Line line = fit_line(points, 0);
  const Cost cost = Cost::affine(line.fixed, line.per_sample);
  return {cost, error_of(cost, points)};
}

Fit fit(const std::vector<Point>& points) {
  Fit affine = fit_affine(points);
  std::vector<double> batches;
  for (const Point& point : points) batches.push_back(point.batch);
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  if (batches.size() < 3 || affine.error <= kGoodError) return affine;
  if (batches.size() >= 4) {
    Fit saturating = fit_saturating(points, batches);
    if (saturating.error <= kGoodError) return saturating;
  }
  return fit_table(points, batches);
}

Json CostFields::write(const Cost& cost) {
  Json value{{"shape", cost.shape()}};
  if (cost.shape_ == Cost::Shape::kTable) {
    value["points"] = Json::array();
    for (const Point& point : cost.points_) value["points"].push_back({point.batch, point.seconds});
  } else {
    value[cost.shape_ == Cost::Shape::kStaircase ? "per_launch" : "fixed"] = cost.fixed_;
    value["per_sample"] = cost.per_sample_;
  }
  if (cost.shape_ == Cost::Shape::kSaturating) value["knee"] = cost.knee_;
  if (cost.shape_ == Cost::Shape::kStaircase) value["step"] = static_cast<std::int64_t>(cost.step_);
  if (cost.factor_ != 1) value["factor"] = cost.factor_;
  if (!cost.buckets_.empty()) {
    Json buckets = Json::array();
    for (const Bucket& bucket : cost.buckets_) buckets.push_back({bucket.ready, bucket.seconds});
    value["overlap"] = {{"forward_share", cost.forward_share_}, {"buckets", std::move(buckets)}};
  }
  return value;
}

Cost CostFields::read(const Json& value, const std::string& what) {
  Fields fields(value, what);
  const std::string shape = fields.text("shape");
  Cost cost;
  if (shape == "affine") {
    cost = Cost::affine(fields.number("fixed", 0), fields.number("per_sample"));
  } else if (shape == "saturating") {
    cost = Cost::saturating(fields.number("fixed", 0), fields.number("per_sample"), fields.number("knee"));
  } else if (shape == "staircase") {
    cost = Cost::staircase(fields.integer("step"), fields.number("per_launch", 0), fields.number("per_sample"));
  } else if (shape == "table") {
    std::vector<Point> points;
    for (const auto& [batch, seconds] : fields.pairs("points")) points.push_back({batch, seconds});
    cost = Cost::table(std::move(points));
  } else {
    refuse(what + " has the unknown shape \"" + shape + "\": give one of affine, saturating, staircase, table");
  }
  if (fields.has("factor")) cost = cost.scaled(fields.number("factor"));
  if (fields.has("overlap")) {
    Fields overlap(fields.at("overlap"), what + "'s overlap");
    std::vector<Bucket> buckets;
    for (const auto& [ready, seconds] : overlap.pairs("buckets")) buckets.push_back({ready, seconds});
    cost = cost.overlapped(overlap.number("forward_share"), std::move(buckets));
    overlap.done();
  }
  fields.done();
  return cost;
}

std::string Cost::to_json() const { return CostFields::write(*this).dump(); }

Cost Cost::from_json(const std::string& text) { return CostFields::read(json::parse(text, "a cost"), "a cost"); }

}  // namespace atl::plan
