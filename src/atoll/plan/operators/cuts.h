// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "atoll/plan/min_cut.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

enum class Side { kRobot, kServer };

/// Prices of a second of computing on each side, and of a byte in each direction.
struct CutWeights {
  double robot = 0;
  double server = 0;
  double up = 0;
  double down = 0;
};

/// Resources that a plan uses.
struct Totals {
  double robot_seconds = 0;
  double server_seconds = 0;
  double up_bytes = 0;
  double down_bytes = 0;
  bool operator==(const Totals&) const = default;
};

/// A plan in which each operator runs whole: on one side, on both, or not at all if nothing needs its output.
struct LayerCut {
  std::vector<Share> shares;
  Totals totals;
  double value = 0;  ///< of the minimum cut, which is the sum of the totals, each times its weight
};

/// The plans of a graph that keep operators whole, as cuts. Two nodes stand for an operator: "the server computes it"
/// and "the robot does not". An uncut edge ensures that one of them does; computing cuts an edge, and so does sending a
/// tensor, once per direction for any number of operators that need it. The construction is that of Hu et al., "Dynamic
/// adaptive DNN surgery for inference acceleration on the edge" (2019), extended by operators that both sides compute.
/// The graph must pass check() and outlive this object.
class CutGraph {
 public:
  explicit CutGraph(const OperatorGraph& graph);

  /// Returns the plan with the lowest price; of several, one with as little as possible on the server.
  LayerCut cheapest(const CutWeights& weights);
  /// Returns the plan that computes everything that is needed on one side.
  LayerCut everything_on(Side side) const;
  /// Returns whether the operator is an output, or an output depends on it.
  bool is_wanted(int index) const { return wanted_[static_cast<std::size_t>(index)]; }

  /// The multipliers of a cut's conditions: the most by which its value falls per unit that a condition is relaxed.
  struct Multipliers {
    std::vector<double> computed;               ///< by operator: a side computes it
    std::vector<std::vector<double>> operands;  ///< by operator and operand: a side that computes one has the other
  };
  /// Returns the multipliers of the last cheapest().
  Multipliers multipliers();
  /// Drops or restores the condition that a side that computes the operator has this operand. Without it, a value is
  /// still a bound, but the shares need not be a plan.
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
  LayerCut plan_of(const std::vector<bool>& robot, const std::vector<bool>& server) const;

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

/// Returns every operator whole on one side, needed or not. Inputs stay with the robot. The graph must pass check().
std::vector<Share> everything_on(Side side, const OperatorGraph& graph);

/// Returns the seconds of a plan of whole operators that run one after the other, including sending, with the latency
/// once for each direction that is used.
double serial_seconds(const Totals& totals, const LinkCost& link) noexcept;
/// Returns the robot's joules in serial_seconds.
double serial_joules(const Totals& totals, const LinkCost& link, const RobotPower& power) noexcept;

/// Returns the plan of whole operators with the smallest serial_seconds. Exact without latency; with it, the better of
/// everything on the robot and the plan that is best without latency. Throws as check().
std::vector<Share> best_layer_cut(const OperatorGraph& graph, const LinkCost& link);
/// Returns the same for many links of one graph; the link must pass check().
LayerCut best_layer_cut(CutGraph& cuts, const LinkCost& link);

/// Returns the plan of whole operators with the smallest serial_joules that takes at most `deadline` serial_seconds,
/// among those on the lower envelope of energy over time: these are minimum cuts for some price of a second, found by
/// bisection. Plans inside the envelope, which may be better, are missed. If the deadline cannot be met, returns
/// best_layer_cut. Throws as check().
std::vector<Share> energy_cut(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                              double deadline);

}  // namespace atl::plan
