// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// Who computes which rows of which operator in an inference, as both sides must know it. Not changed once it is made.
/// Messages and errors call it a division of the model.
struct Plan {
  int input_tensor = -1;  ///< as operators_of was called with
  int dim = -1;
  std::vector<plan::Share> shares;  ///< by operator
  int chunks = 1;                   ///< number of chunks in which inputs are sent up
  bool operator==(const Plan&) const = default;
};

/// {"chunks": c, "dim": d, "input": t, "shares": [[robot begin, robot end, server begin, server end], ...]}
std::string to_json(const Plan& plan);

/// Reads what to_json wrote. Throws Error(kProtocol), which names the field, for anything else. Does not check whether
/// the plan fits a graph.
Plan plan_from_json(const std::string& text);

}  // namespace atl::infer
