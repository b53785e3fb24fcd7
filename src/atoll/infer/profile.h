// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>
#include <string>
#include <vector>

namespace atl::infer {

/// The costs of a graph's nodes on one device, in seconds. Vectors have an entry for each node, which is 0 for nodes
/// that depend on no input and are computed once.
struct Profile {
  std::string device;       ///< "cpu", "cuda:0", with further names of the device
  std::string runner = {};  ///< what ran the operators, with its version: "torch 2.13.0"
  std::string model = {};   ///< the bundle's hash, 64 hexadecimal digits; empty: not known
  /// The input and dimension along which rows were counted, as operators_of takes them; -1, -1: nothing is divided, and
  /// each node has one row.
  int input_tensor = -1;
  int dim = -1;
  std::vector<double> fixed = {};    ///< of a call, independent of its rows
  std::vector<double> per_row = {};  ///< of each row of the node's output, or of the operand that it sums over
  std::vector<double> whole = {};    ///< of one call for all rows
  /// Seconds of the whole model without pauses between nodes. 0: not measured; see seconds().
  double total = 0;

  double seconds() const { return total > 0 ? total : std::accumulate(whole.begin(), whole.end(), 0.0); }
  bool operator==(const Profile&) const = default;
};

/// {"atoll_profile": 1, "device", "runner", "model", "input", "dim", "total", "nodes": [[fixed, per_row, whole], ...]}
std::string to_json(const Profile& profile);

/// Reads what to_json wrote. Throws Error(kInvalidArgument), which names the fault, for another version, a missing or
/// unknown key, strings of more than 256 bytes, a model that is neither empty nor a hash, an input or dimension out of
/// range, more than a million nodes, and times that are negative or more than a day.
Profile profile_from_json(const std::string& text);

}  // namespace atl::infer
