// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>
#include <string>
#include <vector>

namespace atl::infer {

/// What a graph's nodes cost on one device, in seconds. Vectors have an entry for each node; those of nodes that no input
/// reaches, which are computed once, are 0.
struct Profile {
  std::string device;       ///< "cpu", "cuda:0", with what else names it
  std::string runner = {};  ///< what called the operators, with its version: "torch 2.13.0"
  std::string model = {};   ///< the bundle's hash, 64 hexadecimal digits; empty: not known
  /// What the rows were counted along, as operators_of takes it; -1, -1: nothing is divided, and each node has one row.
  int input_tensor = -1;
  int dim = -1;
  std::vector<double> fixed = {};    ///< of a call, whatever its rows
  std::vector<double> per_row = {};  ///< of each row of the node's output, or of those that it sums over
  std::vector<double> whole = {};    ///< of the node called once for all its rows
  /// Of the whole model without a pause between nodes. 0: not measured; see seconds().
  double total = 0;

  double seconds() const { return total > 0 ? total : std::accumulate(whole.begin(), whole.end(), 0.0); }
  bool operator==(const Profile&) const = default;
};

/// {"atoll_profile": 1, "device", "runner", "model", "input", "dim", "total", "nodes": [[fixed, per_row, whole], ...]}
std::string to_json(const Profile& profile);

/// Error(kInvalidArgument) that names what is wrong: another version, a key that is missing or unknown, texts of more
/// than 256 bytes, a model that is neither empty nor a hash, an input or dimension that no graph has, more than a million
/// nodes, and times that are negative or above a day.
Profile profile_from_json(const std::string& text);

}  // namespace atl::infer
