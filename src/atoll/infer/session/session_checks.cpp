// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session_checks.h"

#include <algorithm>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/plan/operator_policies.h"

namespace atl::infer {

void check_policy(const std::string& policy) {
  const std::vector<std::string> known = plan::operator_policies();
  if (std::find(known.begin(), known.end(), policy) != known.end()) return;
  std::string names;
  for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::kInvalidArgument, "the policy \"" + policy + "\" is not known: give one of " + names);
}

Divisions::Options division_options(const SessionOptions& options) {
  Divisions::Options made;
  made.plans.policy = options.policy;
  made.plans.operators.seed = options.seed;
  made.plans.operators.chunks = options.chunks;
  if (options.deadline) made.plans.operators.deadline = options.deadline->count();
  made.plans.power = options.power;
  made.lossy = options.lossy;
  return made;
}

}  // namespace atl::infer
