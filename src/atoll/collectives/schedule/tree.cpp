// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/tree.h"

#include <algorithm>
#include <numeric>

namespace atl::collectives {
namespace {

// Returns the number of subtrees below a node of `count` ranks or islands: as few as the depth, which the fan-out
// dictates, allows.
std::size_t part_count(std::size_t count) {
  std::size_t below = 1;
  while (below * Tree::kFanOut < count) below *= Tree::kFanOut;
  return (count + below - 1) / below;
}

}  // namespace

Tree::Tree(int size) : rank_at_(static_cast<std::size_t>(size)), position_of_(static_cast<std::size_t>(size)) {
  std::iota(rank_at_.begin(), rank_at_.end(), 0);
  std::iota(position_of_.begin(), position_of_.end(), 0);
}

Tree Tree::flat(int size) {
  Tree tree(size);
  tree.add_node(0, size, -1);
  return tree;
}

Tree Tree::of_islands(const Topology& topology) {
  Tree tree(topology.size);
  const bool all_alone = static_cast<int>(topology.islands.size()) == topology.size;
  if (topology.islands.size() == 1 || all_alone) {
    tree.add_ranks(0, topology.size, -1);
    return tree;
  }
  std::vector<int> starts;  // tree position where each island begins, and the end of the last
  int position = 0;
  for (const auto& island : topology.islands) {
    starts.push_back(position);
    for (const int rank : island) {
      tree.rank_at_[static_cast<std::size_t>(position)] = rank;
      tree.position_of_[static_cast<std::size_t>(rank)] = position++;
    }
  }
  starts.push_back(position);
  tree.add_islands(starts, 0, topology.islands.size(), -1);
  return tree;
}

int Tree::add_node(int begin, int end, int parent) {
  const int index = node_count();
  nodes_.push_back({begin, end, parent, {}});
  if (parent >= 0) nodes_[static_cast<std::size_t>(parent)].children.push_back(index);
  return index;
}

void Tree::add_ranks(int begin, int end, int parent) {
  const int index = add_node(begin, end, parent);
  const int count = end - begin;
  if (count <= kFanOut) return;
  const int parts = static_cast<int>(part_count(static_cast<std::size_t>(count)));
  for (int part = 0; part < parts; ++part) {
    add_ranks(begin + count * part / parts, begin + count * (part + 1) / parts, index);
  }
}

void Tree::add_islands(const std::vector<int>& starts, std::size_t first, std::size_t last, int parent) {
  const int index = add_node(starts[first], starts[last], parent);
  const std::size_t count = last - first;
  if (count <= kFanOut) {
    for (std::size_t island = first; island < last; ++island) add_ranks(starts[island], starts[island + 1], index);
    return;
  }
  const std::size_t parts = part_count(count);
  for (std::size_t part = 0; part < parts; ++part) {
    add_islands(starts, first + count * part / parts, first + count * (part + 1) / parts, index);
  }
}

std::vector<int> Tree::path(int rank) const {
  std::vector<int> path{0};
  while (!node(path.back()).holds_ranks()) {
    for (const int child : node(path.back()).children) {
      if (position_of(rank) >= node(child).end) continue;
      path.push_back(child);
      break;
    }
  }
  return path;
}

int Tree::lead_of_child(const Node& parent, const Node& child, int parent_lead, Turn turn) const {
  if (parent_lead >= child.begin && parent_lead < child.end) return parent_lead;
  const auto holder = std::ranges::find_if(parent.children, [&](int each) { return parent_lead < node(each).end; });
  const Node& home = node(*holder);
  const auto place = static_cast<std::uint64_t>(parent_lead - home.begin);
  const auto home_size = static_cast<std::uint64_t>(home.size());
  const auto child_size = static_cast<std::uint64_t>(child.size());
  if (position_of_.size() <= kMixAll) {
    const std::uint64_t number = turn.one_owner ? turn.round : place + home_size * turn.round;
    return child.begin + static_cast<int>(number % child_size);
  }
  if (place >= child_size) return child.begin + static_cast<int>(place % child_size);
  const std::uint64_t partners =
      (child_size - place + home_size - 1) / home_size;  // places of `child` that equal `place` modulo home_size
  return child.begin + static_cast<int>(place + home_size * (turn.round % partners));
}

}  // namespace atl::collectives
