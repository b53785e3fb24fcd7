// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/cost_fit.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/text.h"

namespace atl::plan {
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

}  // namespace atl::plan
