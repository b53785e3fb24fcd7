// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

namespace atl::plan {

/// Of an edge that no cut may pass.
inline constexpr double kUncut = std::numeric_limits<double>::infinity();

struct MinCut {
  double value = 0;               ///< sum of the capacities that lead from the source's side to the sink's
  std::vector<bool> source_side;  ///< by node: the smallest source side of all minimum cuts
};

/// A directed graph with capacities, whose minimum cut between two nodes is found by preflow-push: Goldberg and Tarjan, "A
/// new approach to the maximum-flow problem" (1988), with the selection, the gaps and the global relabelling of Cherkassky and
/// Goldberg, "On implementing the push-relabel method for the maximum flow problem" (1997). It works from the sink
/// towards the source, which gives the smallest source side. Steps: label every node with its distance from the source;
/// take the most distant node with unmet demand and pass the demand on to nodes one nearer; where none is left, raise
/// the label; stop when whatever still lacks is cut off from the source. O(nodes^2 * sqrt(edges)), about a millisecond for 2,000
/// nodes and 10,000 edges of a planner's graph. Capacities can be changed and the cut found again; memory is kept.
class FlowNetwork {
 public:
  int add_node();
  int nodes() const noexcept { return static_cast<int>(first_.size()); }
  /// Returns the edge's index: 0, 1, ... Error(kInvalidArgument) for nodes that are not there and for a capacity that is
  /// negative or not a number; kUncut is one.
  int add_edge(int from, int to, double capacity);
  void set_capacity(int edge, double capacity);
  double capacity(int edge) const { return capacity_[static_cast<std::size_t>(edge)]; }

  /// Error(kInvalidArgument) when source and sink are one node, or a path of uncut edges joins them.
  MinCut min_cut(int source, int sink);
  /// What a maximum flow carries on each edge, with the value of the last min_cut(), which must have been called after
  /// the last change.
  std::vector<double> maximum_flow();

 private:
  // An edge is two arcs: 2 * edge leads forwards, 2 * edge + 1 back, each with what it can still carry.
  struct Arc {
    int to;
    int next;  // of the same node, -1 at the end
    double residual;
  };

  void start(int source, int sink);
  void relabel_all();
  void discharge(int node);
  void raise(int node);
  void close_gap(int label);
  void activate(int node);
  void list(int node);
  void unlist(int node);
  void cancel(int node);
  std::vector<bool> reachable() const;

  std::vector<int> first_;
  std::vector<Arc> arcs_;
  std::vector<double> capacity_;
  int source_ = 0;
  int sink_ = 0;
  double least_ = 0;  // demand below it is rounding

  std::vector<double> demand_;
  std::vector<int> label_;
  std::vector<int> current_;                // the arc at which a node's scan goes on
  std::vector<std::vector<int>> active_;    // by label
  std::vector<int> head_, after_, before_;  // doubly linked lists of the nodes of each label
  int highest_ = 0;                         // label of active nodes
  int farthest_ = 0;                        // label in use
  int raised_ = 0;                          // since the last relabel_all
};

}  // namespace atl::plan
