// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/topology.h"

namespace atl::collectives {

/// The tree along which contributions go up to a chunk's owner and results come down from it: islands (by lowest rank),
/// below them their ranks (ascending). No node has more than kFanOut children: a larger island, or a larger number of
/// islands, gets levels of contiguous, nearly equal ranges. Ranks in tree order are the order in which contributions
/// are folded.
class Tree {
 public:
  static constexpr int kFanOut = 16;

  /// A contiguous range of tree positions. Either all children are nodes, or (`children` empty) all are ranks; an
  /// island of one rank beside larger subtrees is a node with one rank.
  struct Node {
    int begin = 0;
    int end = 0;
    int parent = -1;
    std::vector<int> children;
    bool holds_ranks() const { return children.empty(); }
    int size() const { return end - begin; }
  };

  /// Builds the tree of islands described above.
  static Tree of_islands(const Topology& topology);

  /// Builds a single node with all ranks in ascending order.
  static Tree flat(int size);

  const Node& node(int index) const { return nodes_[static_cast<std::size_t>(index)]; }
  int node_count() const { return static_cast<int>(nodes_.size()); }
  int rank_at(int position) const { return rank_at_[static_cast<std::size_t>(position)]; }
  int position_of(int rank) const { return position_of_[static_cast<std::size_t>(rank)]; }

  /// Returns the nodes that contain `rank`, from the root (index 0) down.
  std::vector<int> path(int rank) const;

  /// Decides which rank acts for a subtree that does not hold a chunk's owner.
  struct Turn {
    std::uint64_t round = 0;  ///< index of the chunk among those of its owner
    bool one_owner = false;   ///< all chunks of the operation have the same owner
  };

  /// Returns the position that acts for `child` of `parent` if `parent_lead` acts for `parent`: the same position if it
  /// lies in `child`; else positions take turns so that all carry the same number of chunks. In trees of more than
  /// kMixAll ranks, positions keep to few partners instead (equal places in subtrees of equal size), so that a rank
  /// needs links to few others.
  int lead_of_child(const Node& parent, const Node& child, int parent_lead, Turn turn) const;
  static constexpr int kMixAll = 32;

 private:
  explicit Tree(int size);
  int add_node(int begin, int end, int parent);
  void add_ranks(int begin, int end, int parent);
  void add_islands(const std::vector<int>& starts, std::size_t first, std::size_t last, int parent);

  std::vector<Node> nodes_;
  std::vector<int> rank_at_;
  std::vector<int> position_of_;
};

}  // namespace atl::collectives
