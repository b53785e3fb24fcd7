// SPDX-License-Identifier: Apache-2.0
//
// The promises of planners, each proven by the tests that docs/promises.md names:
// P-1: A plan is a function of its request and seed: equal ones give the same plan.
// P-2: No plan is faster than the bound that is stated beside it.
// P-3: A plan of batches adds up to the global batch and keeps each rank's limits.
// P-4: No division of a global batch has a shorter predicted step than that of the policy "minmax".
// P-5: A plan of layers that is marked exact fits every device's memory, and no other plan that fits is faster.
// P-6: In a plan of operators some side computes each row that is needed.
// P-7: The policy "auto" for operators is never slower than the best of "local", "offload", "cut" and "stream".
// P-8: Devices that make a step longer are named, with the faster plan without them.
// P-9: Where no plan is possible, the answer names changes of the request that make one possible.
// P-10: By the guard's model, a deadline that the robot alone can meet is met, whatever the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atl::plan {

/// The most samples that any rank is given; it stands for "no cap".
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;

/// One measurement: computing `batch` samples took `seconds`.
struct Point {
  double batch = 0;
  double seconds = 0;
  bool operator==(const Point&) const = default;
};

/// A collective that runs during the backward pass: it may start when the share `ready` of the backward pass is done,
/// and takes `seconds`. Buckets are listed in the order in which they are sent.
struct Bucket {
  double ready = 0;
  double seconds = 0;
  bool operator==(const Bucket&) const = default;
};

/// The seconds that a rank needs for a step, as a non-decreasing function of its batch in samples. An empty batch takes
/// no time to compute. The factory functions throw Error(kInvalidArgument) for parameters that are negative or not
/// finite.
class Cost {
 public:
  /// Every batch takes 0 seconds.
  Cost() = default;

  /// fixed + per_sample * batch.
  static Cost affine(double fixed, double per_sample);
  /// fixed + per_sample * max(batch, knee): a batch of fewer than `knee` samples does not fill the device.
  static Cost saturating(double fixed, double per_sample, double knee);
  /// ceil(batch / step) * (per_launch + per_sample * step): micro-batches or tiles of `step` samples.
  static Cost staircase(std::int64_t step, double per_launch, double per_sample);
  /// Linear between measured points, using their running maximum so that the cost never falls. Below the first point
  /// the first segment continues to an intercept of at least zero; beyond the last point the last segment continues.
  static Cost table(std::vector<Point> points);

  /// Returns the cost of a device `factor` times as slow. Communication is not scaled.
  Cost scaled(double factor) const;
  /// Returns the cost with collectives that overlap the backward pass, which is what remains after `forward_share` of
  /// the compute time. They run one after another: seconds = max(compute, max over k of [forward + ready_k * backward +
  /// sum over j >= k of bucket seconds]). A rank without samples still takes part in them.
  Cost overlapped(double forward_share, std::vector<Bucket> buckets) const;

  /// `batch` must not be negative.
  double seconds(std::int64_t batch) const;
  double compute_seconds(std::int64_t batch) const;
  /// The largest batch of at most `cap` with seconds(batch) <= limit, or -1 when even 0 takes longer. O(log).
  std::int64_t most_within(double limit, std::int64_t cap) const;

  /// "affine", "saturating", "staircase" or "table".
  const char* shape() const noexcept;
  double factor() const noexcept { return factor_; }

  /// Equal costs give equal text, and from_json(to_json()) gives an equal cost.
  std::string to_json() const;
  static Cost from_json(const std::string& text);

  bool operator==(const Cost&) const = default;

 private:
  friend struct CostFields;
  enum class Shape { kAffine, kSaturating, kStaircase, kTable };

  /// One term of the overlap: share * compute + rest.
  struct Term {
    double share = 1;
    double rest = 0;
    bool operator==(const Term&) const = default;
  };

  double shape_seconds(double batch) const;
  double table_seconds(double batch) const;

  Shape shape_ = Shape::kAffine;
  double fixed_ = 0;
  double per_sample_ = 0;
  double knee_ = 0;
  double step_ = 1;
  std::vector<Point> points_;
  double below_slope_ = 0;  // of the table, below its first point
  double factor_ = 1;
  double forward_share_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Term> terms_;
};

/// A cost fitted to measurements, and how far it is from them.
struct Fit {
  Cost cost;
  double error = 0;  ///< root mean squared relative difference: 0.02 means about 2 %
};

/// Returns the affine cost, with parameters of at least 0, that has the smallest error. A single batch size gives a
/// proportional cost. Times must be above 0. A batch may be measured more than once.
Fit fit_affine(const std::vector<Point>& points);

/// Returns the simplest of affine, saturating (which needs four batch sizes) and table that describes the points: the
/// first whose error is at most 3 %, or else the table of the mean time of each batch. Two batch sizes always give an
/// affine cost.
Fit fit(const std::vector<Point>& points);

}  // namespace atl::plan
