// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/cost.h"

namespace atl::plan {

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
