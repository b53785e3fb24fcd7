// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/min_cut.h"
#include "atoll/plan/operators.h"

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
  double value = 0;  ///< price of the totals
};

/// The plans of a graph with whole operators, as cuts: the input's side is the robot. Two nodes stand for an operator, "the
/// server computes it" and "the robot does not"; an uncut edge makes sure that somebody does. Computing cuts an edge, and so
/// does sending a tensor, once per direction however many operators want it. This is the construction of Hu et al.,
/// "Dynamic adaptive DNN surgery for inference acceleration on the edge" (DADS, 2019), with operators that both sides compute.
/// The graph must pass check() and outlive this.
class CutGraph {
 public:
  explicit CutGraph(const OperatorGraph& graph);

  /// The plan of the least price; of several, the one with the least on the server.
  LayerCut cheapest(const CutWeights& weights);
  /// Whether anybody wants the operator's output: it is an output, or one is computed from it.
  bool is_wanted(int operator_index) const { return wanted_[static_cast<std::size_t>(operator_index)]; }

  /// For certificates about plans that are not whole: what the last cheapest() loads on the condition that somebody computes an
  /// operator, and on the two that its operand number `operand` is at hand, on the server and on the robot.
  struct Load {
    std::vector<double> coverage;               // by operator
    std::vector<std::vector<double>> operands;  // by operator and operand, both sides together
  };
  Load load();
  /// Drops the condition that an operand is at hand, or takes it up again. Cuts then need no longer be plans, their values
  /// are bounds.
  void set_operand_required(int operator_index, int operand, bool required);

 private:
  struct OperandEdges {
    int up = -1;
    int down = -1;
    bool carries_up = false;  // the edge itself is the sending, not a condition behind it
    bool carries_down = false;
    bool is_required = true;
  };
  struct Nodes {
    int robot = -1;   // on the source's side: the robot does not compute it
    int server = -1;  // on the source's side: the server computes it
  };

  void add_operator(int index);
  void add_sending(int index, const std::vector<std::pair<int, int>>& consumers);
  void set_weights(const CutWeights& weights);
  LayerCut plan_of(const MinCut& cut) const;

  const OperatorGraph& graph_;
  FlowNetwork network_;
  int source_ = 0;
  int sink_ = 0;
  std::vector<bool> wanted_;
  std::vector<bool> is_output_;
  std::vector<Nodes> nodes_;
  std::vector<int> robot_edges_, server_edges_, coverage_edges_, up_edges_, down_edges_;  // -1: none
  std::vector<std::vector<OperandEdges>> operands_;
};

/// Every operator whole on one side. Inputs stay with the robot. The graph must pass check().
std::vector<Share> everything_on(Side side, const OperatorGraph& graph);

/// The seconds of a plan of whole operators that run one after the other, sending included, with the latency once for each
/// direction that is used.
double serial_seconds(const Totals& totals, const LinkCost& link) noexcept;

/// The plan of the least serial_seconds with whole operators: everything on the robot, or the minimum cut. Exact without latency;
/// with it, a cut that saves a direction is compared as everything on the robot only. Error(kInvalidArgument) as check().
std::vector<Share> best_layer_cut(const OperatorGraph& graph, const LinkCost& link);

/// The plan with whole operators that costs the robot the least energy and takes at most `deadline` serial_seconds: the best of
/// the lower envelope of energy over time, whose corners are minimum cuts for some price of a second (Lagrange multipliers,
/// so plans inside the envelope are missed). When no such plan meets the deadline, the one of the least seconds.
std::vector<Share> energy_cut(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, double deadline);

/// The robot's joules in serial_seconds.
double serial_joules(const Totals& totals, const LinkCost& link, const RobotPower& power) noexcept;

}  // namespace atl::plan
