// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "atoll/plan/batches/balancenet.h"
#include "atoll/plan/batches/policies.h"

namespace atl::plan {

/// All policies on the same costs, side by side.
struct Explanation {
  std::vector<std::string> names;
  std::vector<BatchPlan> plans;                               ///< in the order of policies(), one for each form
  std::vector<std::pair<std::string, std::string>> left_out;  ///< policies that cannot run, and why
  std::vector<BalanceNetRank> equation5;                      ///< BalanceNet's Key, Query and Value, rank by rank
  std::vector<BalanceNetRank> algorithm1;

  std::string to_json() const;
};

/// Plans request.batch by each policy; request.policy and request.form are ignored. Throws Error(kInvalidArgument) if
/// no division fits at all.
Explanation explain(const Request& request);

}  // namespace atl::plan
