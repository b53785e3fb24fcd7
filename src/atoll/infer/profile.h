// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>
#include <string>
#include <vector>

namespace atl::infer {

/// What a graph's nodes cost on one device, in seconds. Vectors have an entry for each node; those of nodes that no input
/// reaches, which are computed once, are 0.
struct Profile {
  std::string device;  ///< "cpu", "cuda:0", with what else names it
  /// What the rows were counted along, as operators_of takes it; -1, -1: nothing is divided, and each node has one row.
  int input_tensor = -1;
  int dim = -1;
  std::vector<double> fixed;    ///< of a call, whatever its rows
  std::vector<double> per_row;  ///< of each row of the node's output
  std::vector<double> whole;    ///< of the node called once for all its rows
  /// Of the whole model without a pause between nodes. 0: not measured; see seconds().
  double total = 0;

  double seconds() const { return total > 0 ? total : std::accumulate(whole.begin(), whole.end(), 0.0); }
  bool operator==(const Profile&) const = default;
};

}  // namespace atl::infer
