// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/cuts.h"

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan {
namespace {

constexpr int kMaxPrices = 64;
constexpr double kMinPriceGain = 1e-9;  // share of the whole that a further price must gain

Region all_of(const Operator& each) { return {0, each.rows}; }

// A plan and its point in the plane of energy over time.
struct Corner {
  LayerCut cut;
  double seconds = 0;
  double joules = 0;

  double cost(double price) const { return joules + price * seconds; }
};

}  // namespace

CutGraph::CutGraph(const OperatorGraph& graph)
    : graph_(graph), wanted_(wanted_operators(graph)), is_output_(graph.operators.size(), false) {
  source_ = network_.add_node();
  sink_ = network_.add_node();
  for (const int output : graph.outputs) is_output_[as_index(output)] = true;
  const std::size_t count = graph.operators.size();
  edges_.resize(count);
  std::vector<Consumers> consumers(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Operator& each = graph.operators[i];
    operand_edges_.emplace_back(each.operands.size());
    // The robot holds an input and the server does not: both nodes stay on the sink's side.
    if (each.is_input() || !wanted_[i]) {
      nodes_.push_back({sink_, sink_});
      continue;
    }
    const Nodes nodes{network_.add_node(), network_.add_node()};
    nodes_.push_back(nodes);
    edges_[i].robot = network_.add_edge(source_, nodes.robot, 0);
    edges_[i].server = network_.add_edge(nodes.server, sink_, 0);
    edges_[i].computed = network_.add_edge(nodes.robot, nodes.server, kUncut);
    for (std::size_t k = 0; k < each.operands.size(); ++k) {
      consumers[as_index(each.operands[k].producer)].emplace_back(static_cast<int>(i), static_cast<int>(k));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (wanted_[i]) add_sending(static_cast<int>(i), consumers[i]);
  }
}

// An intermediate node stands for "the server has it" or "the robot does not have it"; with one consumer, that
// consumer's node serves as it.
void CutGraph::add_sending(int index, const Consumers& consumers) {
  const Nodes& nodes = nodes_[as_index(index)];
  OperatorEdges& edges = edges_[as_index(index)];
  const auto operand = [&](const std::pair<int, int>& consumer) -> OperandEdges& {
    return operand_edges_[as_index(consumer.first)][as_index(consumer.second)];
  };
  if (consumers.size() == 1) {
    edges.up = network_.add_edge(nodes_[as_index(consumers[0].first)].server, nodes.server, 0);
    operand(consumers[0]).up = edges.up;
  } else if (!consumers.empty()) {
    const int has = network_.add_node();
    edges.up = network_.add_edge(has, nodes.server, 0);
    for (const auto& consumer : consumers) {
      operand(consumer).up = network_.add_edge(nodes_[as_index(consumer.first)].server, has, kUncut);
    }
  }
  if (graph_.operators[as_index(index)].is_input()) return;
  if (is_output_[as_index(index)]) {
    edges.down = network_.add_edge(nodes.robot, sink_, 0);
  } else if (consumers.size() == 1) {
    edges.down = network_.add_edge(nodes.robot, nodes_[as_index(consumers[0].first)].robot, 0);
    operand(consumers[0]).down = edges.down;
  } else {
    const int lacks = network_.add_node();
    edges.down = network_.add_edge(nodes.robot, lacks, 0);
    for (const auto& consumer : consumers) {
      operand(consumer).down = network_.add_edge(lacks, nodes_[as_index(consumer.first)].robot, kUncut);
    }
  }
}

void CutGraph::set_weights(const CutWeights& weights) {
  const auto set = [&](int edge, double capacity) {
    if (edge >= 0) network_.set_capacity(edge, capacity);
  };
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const Operator& each = graph_.operators[i];
    for (const OperandEdges& operand : operand_edges_[i]) {
      set(operand.up, kUncut);
      set(operand.down, kUncut);
    }
    set(edges_[i].robot, weights.robot * each.robot.seconds(each.rows));
    set(edges_[i].server, weights.server * each.server.seconds(each.rows));
  }
  // This comes after the operands' edges, because the edge of a single consumer is also that of sending.
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const double bytes = static_cast<double>(graph_.operators[i].bytes);
    set(edges_[i].up, weights.up * bytes);
    set(edges_[i].down, weights.down * bytes);
  }
  for (const auto& operands : operand_edges_) {
    for (const OperandEdges& operand : operands) {
      if (operand.is_required) continue;
      set(operand.up, 0);
      set(operand.down, 0);
    }
  }
}

LayerCut CutGraph::cheapest(const CutWeights& weights) {
  set_weights(weights);
  const MinCut cut = network_.min_cut(source_, sink_);
  std::vector<bool> robot(nodes_.size());
  std::vector<bool> server(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    robot[i] = !cut.source_side[as_index(nodes_[i].robot)];
    server[i] = cut.source_side[as_index(nodes_[i].server)];
  }
  LayerCut plan = plan_of(robot, server);
  plan.value = cut.value;
  return plan;
}

// A cut may compute at no cost what nothing on that side uses: that is left out.
LayerCut CutGraph::plan_of(const std::vector<bool>& robot, const std::vector<bool>& server) const {
  LayerCut plan;
  plan.shares.resize(nodes_.size());
  std::vector<bool> robot_wants = is_output_;
  std::vector<bool> server_wants(nodes_.size(), false);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const Operator& each = graph_.operators[i];
    const bool sends_up = server_wants[i] && (each.is_input() || !server[i]);
    const bool sends_down = robot_wants[i] && !each.is_input() && !robot[i];
    if (sends_up) plan.totals.up_bytes += static_cast<double>(each.bytes);
    if (sends_down) plan.totals.down_bytes += static_cast<double>(each.bytes);
    if (each.is_input()) {
      plan.shares[i].robot = all_of(each);
      continue;
    }
    if (robot[i] && (robot_wants[i] || sends_up)) {
      plan.shares[i].robot = all_of(each);
      plan.totals.robot_seconds += each.robot.seconds(each.rows);
      for (const Operand& operand : each.operands) robot_wants[as_index(operand.producer)] = true;
    }
    if (server[i] && (server_wants[i] || sends_down)) {
      plan.shares[i].server = all_of(each);
      plan.totals.server_seconds += each.server.seconds(each.rows);
      for (const Operand& operand : each.operands) server_wants[as_index(operand.producer)] = true;
    }
  }
  return plan;
}

LayerCut CutGraph::everything_on(Side side) const {
  return plan_of(std::vector<bool>(nodes_.size(), side == Side::kRobot),
                 std::vector<bool>(nodes_.size(), side == Side::kServer));
}

CutGraph::Multipliers CutGraph::multipliers() {
  const std::vector<double> flow = network_.maximum_flow();
  const auto of = [&](int edge) { return edge < 0 ? 0 : flow[as_index(edge)]; };
  Multipliers result;
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    result.computed.push_back(of(edges_[i].computed));
    std::vector<double>& operands = result.operands.emplace_back();
    for (const OperandEdges& operand : operand_edges_[i]) operands.push_back(of(operand.up) + of(operand.down));
  }
  return result;
}

void CutGraph::set_required(int index, int operand, bool is_required) {
  operand_edges_[as_index(index)][as_index(operand)].is_required = is_required;
}

std::vector<Share> everything_on(Side side, const OperatorGraph& graph) {
  std::vector<Share> shares;
  for (const Operator& each : graph.operators) {
    Share& share = shares.emplace_back();
    (side == Side::kRobot || each.is_input() ? share.robot : share.server) = all_of(each);
  }
  return shares;
}

double serial_seconds(const Totals& totals, const LinkCost& link) noexcept {
  const int directions = (totals.up_bytes > 0 ? 1 : 0) + (totals.down_bytes > 0 ? 1 : 0);
  return totals.robot_seconds + totals.server_seconds + totals.up_bytes / link.up_bytes_per_second +
         totals.down_bytes / link.down_bytes_per_second + link.latency * directions;
}

double serial_joules(const Totals& totals, const LinkCost& link, const RobotPower& power) noexcept {
  const double sending = totals.up_bytes / link.up_bytes_per_second + totals.down_bytes / link.down_bytes_per_second;
  return joules(power, serial_seconds(totals, link), totals.robot_seconds, sending);
}

LayerCut best_layer_cut(CutGraph& cuts, const LinkCost& link) {
  LayerCut local = cuts.everything_on(Side::kRobot);
  LayerCut cut = cuts.cheapest({1, 1, 1 / link.up_bytes_per_second, 1 / link.down_bytes_per_second});
  return serial_seconds(local.totals, link) <= serial_seconds(cut.totals, link) ? local : cut;
}

std::vector<Share> best_layer_cut(const OperatorGraph& graph, const LinkCost& link) {
  check(graph);
  check(link);
  CutGraph cuts(graph);
  return best_layer_cut(cuts, link).shares;
}

std::vector<Share> energy_cut(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                              double deadline) {
  check(graph);
  check(link);
  CutGraph cuts(graph);
  const auto corner = [&](LayerCut cut) {
    const Totals totals = cut.totals;
    return Corner{std::move(cut), serial_seconds(totals, link), serial_joules(totals, link, power)};
  };
  const auto cheapest = [&](double price) {
    const double sending = power.idle_watts + power.radio_watts + price;
    return corner(cuts.cheapest({power.compute_watts + price, power.idle_watts + price,
                                 sending / link.up_bytes_per_second, sending / link.down_bytes_per_second}));
  };
  Corner feasible = corner(best_layer_cut(cuts, link));
  if (feasible.seconds > deadline) return feasible.cut.shares;
  Corner best = feasible;
  const auto consider = [&](const Corner& candidate) {
    if (candidate.seconds <= deadline && candidate.joules < best.joules) best = candidate;
  };
  Corner infeasible = cheapest(0);
  consider(infeasible);
  consider(corner(cuts.everything_on(Side::kRobot)));
  consider(corner(cuts.everything_on(Side::kServer)));
  if (infeasible.seconds <= deadline) return best.cut.shares;
  for (int i = 0; i < kMaxPrices && feasible.joules > infeasible.joules; ++i) {
    const double price = (feasible.joules - infeasible.joules) / (infeasible.seconds - feasible.seconds);
    Corner next = cheapest(price);
    consider(next);
    if (next.cost(price) >= (1 - kMinPriceGain) * feasible.cost(price)) break;
    (next.seconds <= deadline ? feasible : infeasible) = std::move(next);
  }
  return best.cut.shares;
}

}  // namespace atl::plan
