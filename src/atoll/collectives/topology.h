// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace atl::collectives {

/// The islands and devices of a group. Equal on all ranks, because it is computed from what all ranks exchanged.
struct Topology {
  int size = 0;
  /// Members of each island in ascending group rank; islands are ordered by their lowest rank.
  std::vector<std::vector<int>> islands;
  std::vector<int> island_of;       ///< by rank: index into islands
  std::vector<std::string> labels;  ///< by island
  /// Relative rate of each island's way to the bridge, by island; all equal unless the users stated it (ATOLL_UPLINK).
  std::vector<double> uplinks;
  /// ATOLL_REDUCE=flat: raw contributions travel to the owner and are folded in group-rank order, so that the bits do
  /// not depend on the layout.
  bool flat_reduce = false;

  /// By island: the library that reduces inside it, as its ranks state it; "" if Atoll does.
  std::vector<std::string> libraries;
  /// By island: the device type, as PyTorch names it, that its ranks compute on.
  std::vector<std::string> devices;

  /// Returns whether ranks lead fixed parts of each message (schedule/chunks.h), so that a library can work inside an
  /// island.
  bool has_leads() const;

  /// Returns whether large calls are cut into chunks, so that the copies of an accelerator's tensors, or the library's
  /// work, overlap with the bridge.
  bool has_staged_chunks() const;

  bool same_island(int a, int b) const { return island_of[a] == island_of[b]; }

  /// The members of a rank's island, and the rank's index among them.
  const std::vector<int>& island_with(int rank) const;
  int place_in_island(int rank) const;

  /// Puts ranks with equal labels into one island. `labels[r]` and `uplink[r]` (<= 0: not stated) are rank r's. An
  /// island's uplink is the sum of the values that its ranks state, or 1 for every island if no rank states one.
  static Topology from_labels(const std::vector<std::string>& labels, const std::vector<double>& uplink = {},
                              bool flat_reduce = false);
};

}  // namespace atl::collectives
