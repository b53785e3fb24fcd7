// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/plan/layers/costs.h"

namespace atl::plan {

/// Extra seconds, once in a step, of a stage that holds `item`.
struct TieCost {
  std::size_t item = 0;
  std::vector<double> seconds;  ///< by class
};

/// One arrangement of tied items: which of them share a stage, and the classes of all their stages but the first.
/// Within it, the cost of ties depends on one stage at a time.
struct TieCase {
  std::vector<char> blocked;                     ///< [item]: no stage may begin here
  std::vector<std::vector<std::size_t>> lowest;  ///< [class][end]: a stage up to `end` begins here or later
  std::vector<TieCost> costs;
  double least = 0;  ///< lower bound on the cost of the ties
};

/// Returns all arrangements for classes with devices; one without restrictions if nothing is tied. Throws
/// Error(kInvalidArgument) above 4096.
std::vector<TieCase> tie_cases(const LayerCosts& costs, const std::vector<std::int64_t>& counts);

/// Returns the seconds that the ties cost once in a step of these stages.
double tie_seconds(const LayerCosts& costs, const std::vector<LayerStage>& stages);

}  // namespace atl::plan
