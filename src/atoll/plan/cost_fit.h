// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/cost.h"

namespace atl::plan {

/// A cost that was fitted to measurements, and how far it is from them.
struct Fit {
  Cost cost;
  double error = 0;  ///< root of the mean squared relative difference: 0.02 means about 2 %
};

/// The affine cost of parameters of at least 0 with the smallest error. One batch size alone gives a proportional cost.
/// Times must be above 0. A batch may be measured more than once.
Fit fit_affine(const std::vector<Point>& points);

/// The simplest of affine, saturating (which needs four batch sizes) and table that describes the points: the first
/// whose error is at most 3 %, the table with the mean of each batch's times where none is. Two batch sizes always give
/// an affine cost.
Fit fit(const std::vector<Point>& points);

}  // namespace atl::plan
