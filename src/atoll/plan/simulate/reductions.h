// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/simulate/links.h"
#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

struct ReductionFlow {
  const Leg* leg = nullptr;
  double bytes = 0;
};

/// Flows that run in parallel; the next phase begins when all have ended and the latency has passed.
struct Phase {
  std::vector<ReductionFlow> flows;
  double latency = 0;
};

/// Returns the phases in which `ranks` reduce `bytes`: as a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce
/// algorithms", 2009), or inside islands, between them and inside again. The legs belong to `links`. No phases for
/// fewer than two ranks or for 0 bytes.
std::vector<Phase> phases_of(const std::vector<int>& ranks, double bytes, const Plan& plan, Links& links);

}  // namespace atl::plan::simulated
