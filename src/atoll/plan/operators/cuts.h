// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "atoll/plan/min_cut.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

enum class Side { kRobot, kServer };

/// The price of a second of computing, and of a byte on the link.
struct CutWeights {
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
};

/// What a plan uses.
struct Totals {
  double robot_seconds = 0;
  double server_seconds = 0;
  double up_bytes = 0;
  double down_bytes = 0;
  bool operator==(const Totals&) const = default;

  double price(const CutWeights& weights) const noexcept {
    return weights.robot * robot_seconds + weights.server * server_seconds + weights.up * up_bytes +
           weights.down * down_bytes;
  }
};

/// A plan in which each operator runs whole: on one side, on both, or nowhere when nobody wants its output.
struct LayerCut {
  std::vector<Share> shares;
  Totals totals;
  double value = 0;  ///< of the minimum cut, which is the price of the totals
};

/// The plans of a graph that keep operators whole, as cuts. Two nodes stand for an operator: "the server computes
/// it" and "the robot does not". An uncut edge sees to it that somebody does; computing cuts an edge, and so does
/// sending a tensor, once per direction however many operators want it. The construction is that of Hu et al.,
/// "Dynamic adaptive DNN surgery for inference acceleration on the edge" (2019), with operators that both sides
/// compute. The graph must pass check() and outlive this.
class CutGraph {
 public:
  explicit CutGraph(const OperatorGraph& graph);

  /// The plan of the least price; of several, one with as little as possible on the server.
  LayerCut cheapest(const CutWeights& weights);
  /// Everything that is wanted on one side.
  LayerCut everything_on(Side side) const;
  /// Whether the operator is an output, or one is computed from it.
  bool is_wanted(int index) const { return wanted_[static_cast<std::size_t>(index)]; }

  /// The multipliers of a cut's conditions: by how much its value falls per unit that a condition is relaxed,
  /// at most.
  struct Multipliers {
    std::vector<double> computed;               ///< by operator: somebody computes it
    std::vector<std::vector<double>> operands;  ///< by operator and operand: who computes one has the other, both sides
  };
  /// Of the last cheapest().
  Multipliers multipliers();
  /// Drops the condition that whoever computes the operator has this operand, or takes it up again. Without it,
  /// a value is still a bound, and a plan need not be one.
  void set_required(int index, int operand, bool is_required);

 private:
  struct Nodes {
    int robot = 0;   // on the source's side: the robot does not compute it
    int server = 0;  // on the source's side: the server computes it
  };
  struct OperandEdges {
    int up = -1;
    int down = -1;
    bool is_required = true;
  };
  struct OperatorEdges {
    int robot = -1;
    int server = -1;
    int computed = -1;
    int up = -1;
    int down = -1;
  };
  using Consumers = std::vector<std::pair<int, int>>;  // operator and number of its operand

  void add_sending(int index, const Consumers& consumers);
  void set_weights(const CutWeights& weights);
  LayerCut plan_of(std::vector<bool> robot, std::vector<bool> server) const;

  const OperatorGraph& graph_;
  FlowNetwork network_;
  int source_ = 0;
  int sink_ = 0;
  std::vector<bool> wanted_;
  std::vector<bool> is_output_;
  std::vector<Nodes> nodes_;
  std::vector<OperatorEdges> edges_;
  std::vector<std::vector<OperandEdges>> operand_edges_;
};

/// Every operator whole on one side, wanted or not. Inputs stay with the robot. The graph must pass check().
std::vector<Share> everything_on(Side side, const OperatorGraph& graph);

/// The seconds of a plan of whole operators that run one after the other, sending included, with the latency once
/// for each direction that is used.
double serial_seconds(const Totals& totals, const LinkCost& link) noexcept;
/// The robot's joules in serial_seconds.
double serial_joules(const Totals& totals, const LinkCost& link, const RobotPower& power) noexcept;

/// The plan of whole operators of the least serial_seconds. Exact without latency; with it, the best of everything
/// on the robot and the plan that is best without. Error(kInvalidArgument) as check().
std::vector<Share> best_layer_cut(const OperatorGraph& graph, const LinkCost& link);
/// The same for many links of one graph; the link must pass check().
LayerCut best_layer_cut(CutGraph& cuts, const LinkCost& link);

/// The plan of whole operators with the least serial_joules that takes at most `deadline` serial_seconds, among
/// those on the lower envelope of energy over time: these are minimum cuts for some price of a second, found
/// by bisection. Plans inside the envelope, which may be better, are missed. When the deadline cannot be met,
/// best_layer_cut. Error(kInvalidArgument) as check().
std::vector<Share> energy_cut(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                              double deadline);

}  // namespace atl::plan
