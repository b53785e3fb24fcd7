// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/plan/operator_policies.h"

namespace atl::infer {

SessionOptions checked_options(SessionOptions options) {
  const std::vector<std::string> known = plan::operator_policies();
  if (std::find(known.begin(), known.end(), options.policy) != known.end()) return options;
  std::string names;
  for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::kInvalidArgument, "the policy \"" + options.policy + "\" is not known: give one of " + names);
}

void check_count(const Graph& graph, std::size_t inputs) {
  if (inputs == graph.inputs.size()) return;
  throw Error(ErrorKind::kInvalidArgument, "the model has " + std::to_string(graph.inputs.size()) + " inputs, and " +
                                               std::to_string(inputs) + " were given");
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
