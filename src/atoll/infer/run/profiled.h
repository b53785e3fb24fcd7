// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/measure.h"
#include "atoll/infer/run/operators.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// A graph with the times of its nodes on a robot and on a server, as planners see it.
struct ProfiledGraph {
  SplitDim along;  ///< -1, -1: operators stay whole
  Operators operators;
  plan::OperatorGraph lowered;
};

/// If the profiles were measured along different dimensions, operators stay whole. Throws Error(kMismatch) for a
/// profile with another number of nodes than the graph.
ProfiledGraph profiled_graph(const Graph& graph, const Profile& robot, const Profile& server);

/// {"operators", "outputs"} as the planner reads a measured model, and "nodes": by operator, the index of its node in
/// the graph, or -1 for an input. Without a server (null) its costs are 0. Throws as profiled_graph does.
std::string profiled_json(const Graph& graph, const Profile& robot, const Profile* server);

}  // namespace atl::infer
