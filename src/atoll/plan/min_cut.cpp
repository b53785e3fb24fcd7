// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/min_cut.h"

#include <algorithm>
#include <string>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr double kResidualRounding = 1e-14;

void check_capacity(double capacity) {
  if (capacity >= 0) return;
  refuse("an edge has the capacity " + number(capacity) + ": give at least 0, or kUncut");
}

}  // namespace

int FlowNetwork::add_node() {
  first_.push_back(-1);
  return nodes() - 1;
}

int FlowNetwork::add_edge(int from, int to, double capacity) {
  for (const int node : {from, to}) {
    if (node < 0 || node >= nodes()) {
      refuse("an edge joins node " + std::to_string(node) + ", but there are " + counted(nodes(), "node"));
    }
  }
  check_capacity(capacity);
  const int edge = static_cast<int>(capacities_.size());
  capacities_.push_back(capacity);
  arcs_.push_back({to, first_[as_index(from)], 0});
  first_[as_index(from)] = 2 * edge;
  arcs_.push_back({from, first_[as_index(to)], 0});
  first_[as_index(to)] = 2 * edge + 1;
  return edge;
}

void FlowNetwork::set_capacity(int edge, double capacity) {
  check_capacity(capacity);
  capacities_.at(as_index(edge)) = capacity;
}

// Uncut edges carry twice the value of any finite cut: more than a minimum cut passes, and no infinity to subtract.
void FlowNetwork::start() {
  double from_source = 0;
  double into_sink = 0;
  double finite = 0;
  for (std::size_t edge = 0; edge < capacities_.size(); ++edge) {
    const double capacity = capacities_[edge];
    if (arcs_[2 * edge + 1].to == source_) from_source += capacity;
    if (arcs_[2 * edge].to == sink_) into_sink += capacity;
    if (capacity != kUncut) finite += capacity;
  }
  most_ = std::min({from_source, into_sink, finite});
  least_ = kResidualRounding * most_;
  const double uncut = most_ > 0 ? 2 * most_ : 1;
  for (std::size_t edge = 0; edge < capacities_.size(); ++edge) {
    arcs_[2 * edge].residual = std::min(capacities_[edge], uncut);
    arcs_[2 * edge + 1].residual = 0;
  }
  demands_.assign(first_.size(), 0);
  for (int arc = first_[as_index(sink_)]; arc >= 0; arc = arcs_[as_index(arc)].next) {
    if (arc % 2 == 0) continue;  // leads out of the sink
    Arc& forwards = arcs_[as_index(arc ^ 1)];
    demands_[as_index(arcs_[as_index(arc)].to)] += forwards.residual;
    arcs_[as_index(arc)].residual += forwards.residual;
    forwards.residual = 0;
  }
  demands_[as_index(sink_)] = 0;
}

// Computes exact distances from the source, by breadth-first search over residual arcs; nodes() if there is no path.
void FlowNetwork::relabel_all() {
  labels_.assign(first_.size(), nodes());
  counts_.assign(first_.size() + 1, 0);
  current_ = first_;
  queue_.assign(1, source_);
  labels_[as_index(source_)] = 0;
  for (std::size_t next = 0; next < queue_.size(); ++next) {
    const int node = queue_[next];
    farthest_ = labels_[as_index(node)];
    ++counts_[as_index(farthest_)];
    for (int arc = first_[as_index(node)]; arc >= 0; arc = arcs_[as_index(arc)].next) {
      const int to = arcs_[as_index(arc)].to;
      if (arcs_[as_index(arc)].residual <= least_ || to == sink_ || labels_[as_index(to)] < nodes()) continue;
      labels_[as_index(to)] = farthest_ + 1;
      queue_.push_back(to);
    }
  }
  raised_ = 0;
  highest_ = -1;
  active_.resize(first_.size());
  for (std::vector<int>& nodes_of_label : active_) nodes_of_label.clear();
  for (const int node : queue_) {
    if (demands_[as_index(node)] > least_) activate(node);
  }
}

void FlowNetwork::activate(int node) {
  if (node == source_ || labels_[as_index(node)] >= nodes()) return;
  active_[as_index(labels_[as_index(node)])].push_back(node);
  highest_ = std::max(highest_, labels_[as_index(node)]);
}

void FlowNetwork::discharge(int node) {
  double& demand = demands_[as_index(node)];
  while (true) {
    for (int& arc = current_[as_index(node)]; arc >= 0; arc = arcs_[as_index(arc)].next) {
      Arc& back = arcs_[as_index(arc)];
      Arc& forwards = arcs_[as_index(arc ^ 1)];  // from the neighbour to this node
      if (forwards.residual <= least_ || labels_[as_index(back.to)] + 1 != labels_[as_index(node)]) continue;
      const double amount = std::min(demand, forwards.residual);
      forwards.residual -= amount;
      back.residual += amount;
      demand -= amount;
      const bool was_idle = demands_[as_index(back.to)] <= least_;
      demands_[as_index(back.to)] += amount;
      if (was_idle && demands_[as_index(back.to)] > least_) activate(back.to);
      if (demand <= least_) return;
    }
    raise(node);
    if (labels_[as_index(node)] >= nodes()) return;
  }
}

void FlowNetwork::raise(int node) {
  const int old = labels_[as_index(node)];
  int label = nodes();
  for (int arc = first_[as_index(node)]; arc >= 0; arc = arcs_[as_index(arc)].next) {
    if (arcs_[as_index(arc ^ 1)].residual > least_)
      label = std::min(label, labels_[as_index(arcs_[as_index(arc)].to)] + 1);
  }
  current_[as_index(node)] = first_[as_index(node)];
  ++raised_;
  if (--counts_[as_index(old)] == 0) {  // no node has this label, so no node beyond it has a path to the source
    if (farthest_ > old) {
      for (int& each : labels_) {
        if (each <= old || each >= nodes()) continue;
        --counts_[as_index(each)];
        each = nodes();
      }
    }
    farthest_ = old;
    label = nodes();
  }
  labels_[as_index(node)] = label;
  if (label < nodes()) {
    ++counts_[as_index(label)];
    farthest_ = std::max(farthest_, label);
  }
}

MinCut FlowNetwork::min_cut(int source, int sink) {
  if (source < 0 || sink < 0 || source >= nodes() || sink >= nodes() || source == sink) {
    refuse("a cut was requested between nodes " + std::to_string(source) + " and " + std::to_string(sink) + " of " +
           counted(nodes(), "node") + ": give two different ones");
  }
  source_ = source;
  sink_ = sink;
  start();
  relabel_all();
  while (highest_ >= 0) {
    std::vector<int>& candidates = active_[as_index(highest_)];
    if (candidates.empty()) {
      --highest_;
      continue;
    }
    const int node = candidates.back();
    candidates.pop_back();
    if (labels_[as_index(node)] != highest_ || demands_[as_index(node)] <= least_) continue;
    discharge(node);
    if (2 * raised_ >= nodes()) relabel_all();
  }
  relabel_all();
  MinCut cut;
  cut.source_side.resize(first_.size());
  for (const int node : queue_) cut.source_side[as_index(node)] = true;
  for (std::size_t edge = 0; edge < capacities_.size(); ++edge) {
    const bool leaves =
        cut.source_side[as_index(arcs_[2 * edge + 1].to)] && !cut.source_side[as_index(arcs_[2 * edge].to)];
    if (leaves) cut.value += capacities_[edge];
  }
  if (cut.value == kUncut) refuse("a path of uncut edges joins source and sink: give one of them a capacity");
  return cut;
}

// Cancels flow from `node` to the sink that does not come from the source, along one path; false if none is left.
bool FlowNetwork::cancel_once(int node) {
  arrivals_.assign(first_.size(), -1);
  queue_.assign(1, node);
  for (std::size_t next = 0; next < queue_.size() && arrivals_[as_index(sink_)] < 0; ++next) {
    for (int arc = first_[as_index(queue_[next])]; arc >= 0; arc = arcs_[as_index(arc)].next) {
      const int to = arcs_[as_index(arc)].to;
      if (arc % 2 != 0 || arcs_[as_index(arc ^ 1)].residual <= least_ || to == node || arrivals_[as_index(to)] >= 0)
        continue;
      arrivals_[as_index(to)] = arc;
      queue_.push_back(to);
    }
  }
  if (arrivals_[as_index(sink_)] < 0) return false;
  double amount = demands_[as_index(node)];
  for (int each = sink_; each != node; each = arcs_[as_index(arrivals_[as_index(each)] ^ 1)].to) {
    amount = std::min(amount, arcs_[as_index(arrivals_[as_index(each)] ^ 1)].residual);
  }
  for (int each = sink_; each != node; each = arcs_[as_index(arrivals_[as_index(each)] ^ 1)].to) {
    arcs_[as_index(arrivals_[as_index(each)])].residual += amount;
    arcs_[as_index(arrivals_[as_index(each)] ^ 1)].residual -= amount;
  }
  demands_[as_index(node)] -= amount;
  return true;
}

std::vector<double> FlowNetwork::maximum_flow() {
  for (int node = 0; node < nodes(); ++node) {
    if (node == source_ || node == sink_) continue;
    while (demands_[as_index(node)] > least_ && cancel_once(node)) continue;
  }
  std::vector<double> flow(capacities_.size());
  for (std::size_t edge = 0; edge < flow.size(); ++edge) flow[edge] = arcs_[2 * edge + 1].residual;
  return flow;
}

}  // namespace atl::plan
