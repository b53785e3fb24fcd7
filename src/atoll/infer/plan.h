// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace atl::infer
