// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/run/operators.h"

namespace atl::infer {

/// An input of a graph and the dimension along which it is divided; -1, -1: none.
struct SplitDim {
  int input_tensor = -1;
  int dim = -1;
  bool operator==(const SplitDim&) const = default;
};

/// The default dimension of a division: among all inputs and dimensions, the one under which local nodes make the most
/// bytes, or the first of equals. Robot and server find the same one.
SplitDim usual_split(const Graph& graph);

/// Times every node of the model on its device, whole and with half its rows (or, where it needs sums over rows, their
/// state and half the result), with inputs of zeros. One round of all nodes warms up; then rounds are measured until
/// `seconds` have passed, at least one. A node's time is the lower quartile of its rounds, so that other load of the
/// machine counts little. If the nodes together take longer than an uninterrupted run of the model, because each is
/// waited for, their times are scaled down to that run. `operators` are those of the model's graph. `stop` is called
/// between nodes and must be cheap; when it returns true, Error(kAborted) is thrown. Throws what the runner throws.
Profile measure_profile(const LoadedModel& model, const Operators& operators, double seconds,
                        const std::function<bool()>& stop = {});

/// The same with `rounds` rounds, at least one, however long they take. `go_on` is called with the progress between
/// nodes, every 50 ms during an uninterrupted run of the model, and at the end; `done` and `of` count nodes, including
/// the warm-up. When it returns false, Error(kAborted) is thrown; what it throws goes to the caller.
Profile measure_rounds(const LoadedModel& model, const Operators& operators, int rounds,
                       const std::function<bool(std::size_t done, std::size_t of)>& go_on = {});

}  // namespace atl::infer
