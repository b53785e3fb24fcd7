// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/infer/run/runner.h"

namespace atl::infer {

/// A robot's own way of running a whole model, such as a compiled package for its accelerator. One thread at a time, and
/// always the same one but for the constructor and the destructor.
class LocalEngine {
 public:
  virtual ~LocalEngine() = default;
  /// The graph's output tensors, in order, for its inputs; both on the session's device. They are complete when it returns, and
  /// later runs do not change them. The inputs stay as they are.
  virtual std::vector<Value> run(std::span<const Value> inputs) = 0;
};

/// What the engine takes for these inputs: the least of three runs after one that warms up.
double measured_seconds(LocalEngine& engine, std::span<const Value> inputs);

}  // namespace atl::infer
