// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/region_search.h"

namespace atl::plan {

/// Input of a policy. Fields that the policy does not use are ignored.
struct OperatorOptions {
  double deadline = 1;     ///< energy: seconds that an inference may take
  int chunks = 8;          ///< stream, auto: chunks in which inputs are sent
  std::uint64_t seed = 0;  ///< random, intra-dp, hybrid-parallel
  /// intra-dp, hybrid-parallel: as their authors run them. The rate is known in whole megabytes per second (below one
  /// everything is local), halos are not planned for, and layers whose output is larger than the input receive nothing,
  /// while tensors of any size may be sent. The resulting plan is predicted with the real rate and rows.
  bool is_literal = false;
  std::int64_t evaluations = 10'000;  ///< intra-dp, hybrid-parallel: limit on predictions by differential evolution
  SearchOptions search = {};          ///< auto; its `chunks` is replaced by the above
};

/// local            everything on the robot
/// offload          everything on the server
/// stream           the same, with the inputs sent in chunks
/// cut              the best plan in which every operator runs whole on one side (DSCCS, DADS)
/// energy           the one that meets the deadline with the least energy of the robot (the problem of SPSO-GA)
/// tensor           rows of every operator in proportion to the sides' speeds, exchanged where they lack (DINA)
/// intra-dp         one share for each operator, by differential evolution on the predicted time (Intra-DP's LOSS)
/// hybrid-parallel  one share for each stage of the chain, likewise (Hybrid-Parallel's LOSS)
/// random           any plan, by the seed
/// auto             the fastest of local, offload, stream, cut and the regions of search_regions()
std::vector<std::string> operator_policies();

/// Plans by the policy, and predicts the plan. All rows of all operators that some output needs are computed. The
/// policies of papers plan as the papers describe, even if something simpler is faster: Intra-DP and Hybrid-Parallel
/// allow no message of a tensor that is larger than the model's input, so both sides compute what they need of it;
/// other operators have one share, global ones of 0 or 1. Intra-DP without divisible operators is the policy cut. Equal
/// arguments give equal plans, except for auto when its search runs out of time. Throws Error(kInvalidArgument) for an
/// unknown policy, and as check().
OperatorPlan make_plan(const std::string& policy, const OperatorGraph& graph, const LinkCost& link,
                       const RobotPower& power, const OperatorOptions& options = {});

}  // namespace atl::plan
