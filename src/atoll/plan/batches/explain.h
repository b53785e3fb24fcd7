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
  std::vector<BatchPlan> plans;                               ///< in the order of policies(); each form for itself
  std::vector<std::pair<std::string, std::string>> left_out;  ///< policies that lack what they need, and what that is
  std::vector<BalanceNetRank> equation5;                      ///< BalanceNet's Key, Query and Value, rank by rank
  std::vector<BalanceNetRank> algorithm1;

  std::string to_json() const;
};

/// Plans request.batch by each policy; request.policy and request.form do not matter. Throws Error(kInvalidArgument)
/// when no division fits at all.
Explanation explain(const Request& request);

}  // namespace atl::plan
