// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plan/operators.h"

namespace atl::infer {

/// What a node of a graph takes on a device, in seconds.
struct NodeTime {
  int node = 0;
  plan::RowCost rows;  ///< of some rows of its output
  double whole = 0;    ///< of all of them, as it was measured
};

/// A model as it was measured on one device.
struct Profile {
  std::string device;           ///< "cuda:0 NVIDIA Jetson Xavier NX"
  std::string runner;           ///< what called the operators, with its version: "torch 2.13.0"
  std::string model;            ///< the bundle's hash
  std::vector<NodeTime> nodes;  ///< in order; nodes that are absent were not measured
  double total = 0;             ///< seconds of the whole model, which launches that overlap make less than the sum
};

/// {"atoll_profile": 1, "device", "runner", "model", "total", "nodes": [[node, fixed, per_row, whole], ...]}
std::string to_json(const Profile& profile);

/// Error(kInvalidArgument) that names what is wrong: another version, a key that is missing or unknown, texts of more
/// than 256 bytes, a model that is no hash, more than a million nodes, nodes out of order, and times that are negative
/// or above a day.
Profile profile_from_json(const std::string& text);

}  // namespace atl::infer
