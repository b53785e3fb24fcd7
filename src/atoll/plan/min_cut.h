// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

namespace atl::plan {

/// The capacity of an edge that no cut may cross.
inline constexpr double kUncut = std::numeric_limits<double>::infinity();

struct MinCut {
  double value = 0;               ///< sum of the capacities that lead from the source's side to the sink's
  std::vector<bool> source_side;  ///< by node; of all minimum cuts, the one with the smallest source side
};

/// A directed graph with capacities, whose minimum cut between two nodes is found by pushing preflows: Goldberg and
/// Tarjan, "A new approach to the maximum-flow problem" (1988), with the order, the gaps and the global relabelling of
/// Cherkassky and Goldberg, "On implementing the push-relabel method for the maximum flow problem" (1997). It works
/// from the sink towards the source, which gives the smallest source side. Steps: label every node with its distance
/// from the source; take the most distant node with unmet demand and push the demand to neighbours one step nearer; if
/// there are none, raise the label; stop when all remaining demand is cut off from the source. O(nodes^2 *
/// sqrt(edges)). Capacities may be changed and the cut found again without reallocation. Capacities below 1e-14 of what
/// source and sink could carry count as 0.
class FlowNetwork {
 public:
  int add_node();
  int nodes() const noexcept { return static_cast<int>(first_.size()); }
  /// Returns the edge's index: 0, 1, ... Throws Error(kInvalidArgument) if a node does not exist or if the capacity is
  /// negative or NaN; kUncut is allowed.
  int add_edge(int from, int to, double capacity);
  /// Throws as add_edge.
  void set_capacity(int edge, double capacity);

  /// Throws Error(kInvalidArgument) if source and sink are the same node, if either does not exist, or if a path of
  /// uncut edges joins them.
  MinCut min_cut(int source, int sink);
  /// Returns the flow on each edge, for a flow of the last min_cut's value. min_cut must have been called since the
  /// last change.
  std::vector<double> maximum_flow();

 private:
  // Edge e is two arcs, 2e forwards and 2e + 1 back, each with what it can still carry.
  struct Arc {
    int to;
    int next;  // of the same node, -1 at the end
    double residual;
  };

  void start();
  void relabel_all();
  void discharge(int node);
  void raise(int node);
  void activate(int node);
  bool cancel_once(int node);

  std::vector<int> first_;  // by node: its latest arc
  std::vector<Arc> arcs_;
  std::vector<double> capacities_;
  int source_ = 0;
  int sink_ = 0;
  double most_ = 0;   // no finite cut has a larger value
  double least_ = 0;  // less than this is rounding

  std::vector<double> demands_;  // the source's is the flow
  std::vector<int> labels_;
  std::vector<int> current_;              // by node: the arc at which its scan continues
  std::vector<int> counts_;               // by label
  std::vector<std::vector<int>> active_;  // by label; may hold stale entries
  std::vector<int> queue_;
  std::vector<int> arrivals_;  // by node: the arc by which a search reached it
  int highest_ = -1;           // label of active nodes
  int farthest_ = 0;           // label below nodes()
  int raised_ = 0;             // since the last relabel_all
};

}  // namespace atl::plan
