// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/infer/run/executor.h"

namespace atl::infer {

/// A robot's own way of running a whole model, such as a compiled package for its accelerator. One thread at a time.
class LocalEngine {
 public:
  virtual ~LocalEngine() = default;
  /// The graph's output tensors, in order, for its inputs; both on the session's device.
  virtual std::vector<Value> run(std::span<const Value> inputs) = 0;
};

/// What the engine takes for inputs of zeros: the least of three runs after one that warms up.
double measured_seconds(LocalEngine& engine, const LoadedModel& model);

}  // namespace atl::infer
