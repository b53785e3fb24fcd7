// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/infer/run/runner.h"

namespace atl::infer {

/// A robot's own way to run a whole model, such as a package compiled for its accelerator. Called on one thread only,
/// except for the constructor and the destructor.
class LocalEngine {
 public:
  virtual ~LocalEngine() = default;
  /// Computes the graph's output tensors, in order, from its inputs; both are on the session's device. The outputs are
  /// complete when it returns, and later runs do not change them. The inputs must not be changed.
  virtual std::vector<Value> run(std::span<const Value> inputs) = 0;
};

/// Seconds that the engine takes for these inputs: the minimum of three runs after a warm-up.
double measured_seconds(LocalEngine& engine, std::span<const Value> inputs);

}  // namespace atl::infer
