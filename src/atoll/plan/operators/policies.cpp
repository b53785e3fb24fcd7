// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/policies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "atoll/plan/differential_evolution.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/stages.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Shares = std::vector<Share>;

Share all_on_robot(std::int64_t rows) { return {{0, rows}, {}}; }
Share all_on_server(std::int64_t rows) { return {{}, {0, rows}}; }

// Returns whether parts of the rows need only parts of some operand.
bool is_divisible(const Operator& made) {
  return made.rows > 1 && std::any_of(made.operands.begin(), made.operands.end(),
                                      [](const Operand& operand) { return operand.needed != nullptr; });
}

// Gives the server the first `cut` rows and the robot the rest.
Share divided(std::int64_t cut, std::int64_t rows) {
  if (cut <= 0) return all_on_robot(rows);
  if (cut >= rows) return all_on_server(rows);
  return {{cut, rows}, {0, cut}};
}

std::int64_t part_of(std::int64_t rows, double share) { return std::llround(static_cast<double>(rows) * share); }

Shares by_speed(const OperatorGraph& graph) {
  const double robot = graph.robot_seconds();
  const double server = graph.server_seconds();
  const double share = robot + server > 0 ? robot / (robot + server) : 0.5;
  Shares shares;
  for (const Operator& made : graph.operators) {
    if (made.is_input()) {
      shares.push_back(all_on_robot(made.rows));
    } else if (is_divisible(made)) {
      shares.push_back(divided(part_of(made.rows, share), made.rows));
    } else {
      const bool is_on_robot = made.robot.seconds(made.rows) <= made.server.seconds(made.rows);
      shares.push_back(is_on_robot ? all_on_robot(made.rows) : all_on_server(made.rows));
    }
  }
  return shares;
}

Shares at_random(const OperatorGraph& graph, std::uint64_t seed) {
  Random random(seed, 0, Purpose::kShares);
  Shares shares;
  for (const Operator& made : graph.operators) {
    const std::int64_t rows = made.rows;
    const std::uint64_t kind = random.below(4);
    if (made.is_input() || kind == 0) {
      shares.push_back(all_on_robot(rows));
    } else if (kind == 1) {
      shares.push_back(all_on_server(rows));
    } else if (kind == 2) {
      shares.push_back({{0, rows}, {0, rows}});
    } else {  // the robot from `begin` on, the server to `end`, and begin <= end
      const std::int64_t end = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(rows) + 1));
      const std::int64_t begin = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end) + 1));
      Share share;
      if (begin < rows) share.robot = {begin, rows};
      if (end > 0) share.server = {0, end};
      shares.push_back(share);
    }
  }
  return shares;
}

// The problem that both papers call LOSS, with their constraint on messages: M_i and N_i, the inputs that a layer i
// receives, are empty for layers whose output is larger than the model's input. The reason they give is that some
// layers have much smaller outputs than the input. So by default large tensors are not sent; with is_literal, large
// layers receive nothing.
class SharesProblem {
 public:
  enum class Unit { kOperator, kStage };

  SharesProblem(const OperatorGraph& graph, Unit unit, bool is_literal)
      : graph_(graph),
        is_literal_(is_literal),
        is_wanted_(graph.operators.size(), false),
        is_large_(graph.operators.size(), false),
        variable_(graph.operators.size(), -1) {
    double input_bytes = 0;
    for (const Operator& made : graph.operators) input_bytes += made.is_input() ? static_cast<double>(made.bytes) : 0;
    for (const Stage& stage : stages_of(graph).stages) {
      bool is_first = true;
      for (const int index : stage.operators) {
        const auto v = as_index(index);
        is_wanted_[v] = true;
        is_large_[v] = static_cast<double>(graph.operators[v].bytes) > input_bytes;
        if (is_large_[v] && !is_literal) continue;
        if (is_first || unit == Unit::kOperator) ++variables_;
        is_first = false;
        variable_[v] = static_cast<int>(variables_) - 1;
      }
    }
  }

  std::size_t variables() const noexcept { return variables_; }

  // The variables are the robot's shares.
  Shares shares(std::span<const double> robot_shares) const {
    Shares needed(graph_.operators.size());  // without a message
    for (const int output : graph_.outputs) {
      const auto v = as_index(output);
      if (is_large_[v] && !is_literal_) needed[v].robot = {0, graph_.operators[v].rows};
    }
    Shares result(graph_.operators.size());
    for (std::size_t v = graph_.operators.size(); v-- > 0;) {
      const Operator& made = graph_.operators[v];
      if (made.is_input()) result[v] = all_on_robot(made.rows);
      if (made.is_input() || !is_wanted_[v]) continue;
      result[v] = share_of(v, needed[v], robot_shares);
      for (const Operand& operand : made.operands) {
        const auto from = as_index(operand.producer);
        if (graph_.operators[from].is_input() || !(is_literal_ ? is_large_[v] : is_large_[from])) continue;
        add_needs(operand, result[v], graph_.operators[from].rows, needed[from]);
      }
    }
    return result;
  }

 private:
  Share share_of(std::size_t v, Share share, std::span<const double> robot_shares) const {
    const Operator& made = graph_.operators[v];
    if (variable_[v] >= 0) {
      const double robot = robot_shares[as_index(variable_[v])];
      const double server = is_divisible(made) ? 1 - robot : robot < 0.5 ? 1 : 0;
      const Share chosen = divided(part_of(made.rows, server), made.rows);
      share.robot = hull(share.robot, chosen.robot);
      share.server = hull(share.server, chosen.server);
    }
    share = closed(share, made.rows);
    if (is_divisible(made)) return share;
    if (!share.robot.is_empty()) share.robot = {0, made.rows};
    if (!share.server.is_empty()) share.server = {0, made.rows};
    return share;
  }

  const OperatorGraph& graph_;
  bool is_literal_;
  std::vector<bool> is_wanted_;
  std::vector<bool> is_large_;
  std::vector<int> variable_;  // -1: what its consumers need
  std::size_t variables_ = 0;
};

// A share of the rows needs the same share of the operand's.
OperatorGraph without_halos(OperatorGraph graph) {
  for (Operator& made : graph.operators) {
    for (Operand& operand : made.operands) {
      if (!operand.needed) continue;
      const std::int64_t to = made.rows;
      const std::int64_t from = graph.operators[as_index(operand.producer)].rows;
      operand.needed = [to, from](Region rows) { return same_share(rows, from, to); };
    }
  }
  return graph;
}

Shares by_evolution(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, SharesProblem::Unit unit,
                    const OperatorOptions& options) {
  constexpr double kMegabyte = 1e6;
  if (std::none_of(graph.operators.begin(), graph.operators.end(), is_divisible)) return best_layer_cut(graph, link);
  LinkCost known = link;
  if (options.is_literal) {
    known.up_bytes_per_second = std::floor(link.up_bytes_per_second / kMegabyte) * kMegabyte;
    known.down_bytes_per_second = std::floor(link.down_bytes_per_second / kMegabyte) * kMegabyte;
    if (known.up_bytes_per_second == 0 || known.down_bytes_per_second == 0) {
      return everything_on(Side::kRobot, graph);
    }
  }
  const OperatorGraph planned = options.is_literal ? without_halos(graph) : graph;
  const SharesProblem problem(planned, unit, options.is_literal);
  if (problem.variables() == 0) return problem.shares({});
  const auto seconds = [&](std::span<const double> robot_shares) {
    return simulate(planned, known, power, problem.shares(robot_shares), 1).seconds;
  };
  EvolutionOptions evolution;
  evolution.evaluations = options.evaluations;
  evolution.seed = options.seed;
  // The papers start with everything on the robot.
  const std::vector<std::vector<double>> starts(1, std::vector<double>(problem.variables(), 1.0));
  return problem.shares(differential_evolution(seconds, problem.variables(), evolution, starts).best);
}

}  // namespace

std::vector<std::string> operator_policies() {
  return {"local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "hybrid-parallel", "random", "auto"};
}

OperatorPlan make_plan(const std::string& policy, const OperatorGraph& graph, const LinkCost& link,
                       const RobotPower& power, const OperatorOptions& options) {
  check(graph);
  OperatorPlan plan;
  plan.policy = policy;
  if (policy == "auto") {
    SearchOptions search = options.search;
    search.chunks = options.chunks;
    plan = search_regions(graph, link, power, search).plan;
    plan.policy = policy;
    return plan;
  }
  if (policy == "local") {
    plan.shares = everything_on(Side::kRobot, graph);
  } else if (policy == "offload" || policy == "stream") {
    plan.shares = everything_on(Side::kServer, graph);
    if (policy == "stream") plan.chunks = options.chunks;
  } else if (policy == "cut") {
    plan.shares = best_layer_cut(graph, link);
  } else if (policy == "energy") {
    plan.shares = energy_cut(graph, link, power, options.deadline);
  } else if (policy == "tensor") {
    plan.shares = by_speed(graph);
  } else if (policy == "intra-dp") {
    plan.shares = by_evolution(graph, link, power, SharesProblem::Unit::kOperator, options);
  } else if (policy == "hybrid-parallel") {
    plan.shares = by_evolution(graph, link, power, SharesProblem::Unit::kStage, options);
  } else if (policy == "random") {
    plan.shares = at_random(graph, options.seed);
  } else {
    refuse("the policy \"" + policy + "\" is not known: give one of " + joined(operator_policies()));
  }
  predict(graph, link, power, plan);
  return plan;
}

}  // namespace atl::plan
