// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/explain.h"

#include "atoll/core/error.h"

namespace atl::plan {
namespace {

void add(Explanation& explanation, Request request, std::string_view policy, const std::string& form) {
  request.policy = policy;
  request.form = form;
  try {
    explanation.plans.push_back(plan_batches(request));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    const std::string name = request.policy + (form == "literal" ? " (literal)" : "");
    explanation.left_out.emplace_back(name, error.what());
  }
}

std::vector<BalanceNetRank> metrics(const Request& request, BalanceNetRule rule) {
  try {
    return balancenet(request.ranks, request.batch, rule).ranks;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    return {};
  }
}

}  // namespace

Explanation explain(const Request& request) {
  Explanation explanation;
  explanation.names = names_of(request.ranks);
  threshold(request.ranks, request.batch);  // a batch that fits nowhere is an error, not nine policies left out
  for (const std::string_view policy : policies()) {
    add(explanation, request, policy, "normalised");
    if (policy.starts_with("balancenet")) add(explanation, request, policy, "literal");
  }
  explanation.equation5 = metrics(request, BalanceNetRule::kEquation5);
  explanation.algorithm1 = metrics(request, BalanceNetRule::kAlgorithm1);
  return explanation;
}

}  // namespace atl::plan
