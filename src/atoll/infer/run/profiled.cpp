// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/profiled.h"

#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/run/costs.h"
#include "atoll/json/parse.h"
#include "atoll/plan/operators/json.h"

namespace atl::infer {
namespace {

void check_size(const Graph& graph, const Profile& profile) {
  for (const std::size_t size : {profile.fixed.size(), profile.per_row.size(), profile.whole.size()}) {
    if (size == graph.nodes.size()) continue;
    throw Error(ErrorKind::kMismatch, "the profile of " + profile.device + " has " + std::to_string(size) +
                                          " nodes, but the graph has " + std::to_string(graph.nodes.size()) +
                                          ": measure this graph");
  }
}

// Costs in the rows that operators count. A profile that counted rows along another dimension only gives whole nodes.
NodeCosts costs_of(const Profile& profile, const Operators& operators, bool is_divided) {
  NodeCosts costs(profile.whole.size());
  for (const Operators::Operator& each : operators.operators) {
    if (each.node < 0 || each.part == Operators::Part::kResult) continue;  // its states precede it and count the rows
    const auto node = static_cast<std::size_t>(each.node);
    if (is_divided) {
      costs[node] = {profile.fixed[node], profile.per_row[node] * static_cast<double>(each.rows)};
    } else {
      costs[node] = {profile.whole[node], 0};
    }
  }
  return costs;
}

}  // namespace

ProfiledGraph profiled_graph(const Graph& graph, const Profile& robot, const Profile& server) {
  check_size(graph, robot);
  check_size(graph, server);
  ProfiledGraph made;
  made.along = {robot.input_tensor, robot.dim};
  const bool is_divided = made.along == SplitDim{server.input_tensor, server.dim};
  if (!is_divided) made.along = {};
  made.operators = operators_of(graph, made.along.input_tensor, made.along.dim);
  made.lowered = operator_graph(graph, made.operators, costs_of(robot, made.operators, is_divided),
                                costs_of(server, made.operators, is_divided));
  return made;
}

std::string profiled_json(const Graph& graph, const Profile& robot, const Profile* server) {
  Profile nothing = robot;  // along the same dimension
  for (auto* each : {&nothing.fixed, &nothing.per_row, &nothing.whole}) each->assign(graph.nodes.size(), 0);
  const ProfiledGraph made = profiled_graph(graph, robot, server == nullptr ? nothing : *server);
  json::Json json = plan::write_operators(made.lowered);
  json["nodes"] = json::Json::array();
  for (const Operators::Operator& each : made.operators.operators) json["nodes"].push_back(each.node);
  return json.dump();
}

}  // namespace atl::infer
