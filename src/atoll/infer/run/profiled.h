// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/division.h"
#include "atoll/infer/run/measure.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// A graph with what its nodes take on a robot and on a server, as planners see it.
struct ProfiledGraph {
  SplitDim along;  ///< -1, -1: operators stay whole
  Operators operators;
  plan::OperatorGraph lowered;
};

/// Where the profiles were measured along different dimensions, operators stay whole. Error(kMismatch) for a profile that has not
/// as many nodes as the graph.
ProfiledGraph profiled_graph(const Graph& graph, const Profile& robot, const Profile& server);

/// {"operators", "outputs"} as the planner reads a measured model, and "nodes": by operator, the place of its node in the graph;
/// -1 for an input. Without a server (null) nothing costs anything there. Errors as profiled_graph.
std::string profiled_json(const Graph& graph, const Profile& robot, const Profile* server);

}  // namespace atl::infer
