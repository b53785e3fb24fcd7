// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/division.h"
#include "atoll/infer/run/executor.h"

namespace atl::infer {

/// An input of a graph and the dimension along which it is divided; -1, -1: none.
struct SplitDim {
  int input_tensor = -1;
  int dim = -1;
  bool operator==(const SplitDim&) const = default;
};

/// What a graph is divided along unless somebody knows better: of all inputs and dimensions the one under which local
/// nodes make the most bytes; of equal ones the first. Robot and server find the same.
SplitDim usual_split(const Graph& graph);

/// Times every node of the model on its device, whole and at half its rows (where it needs sums over rows: their state and
/// half the result), with inputs of zeros. A round of all nodes warms
/// up; then rounds are measured until `seconds` are over, at least one. A node's time is the lower quartile of its rounds, so
/// that what else the machine does counts little; where all nodes together take longer than the model in one go, because the
/// device is waited for between them, they are scaled down to that. `operators` are those of the model's graph. `stop` is
/// asked between nodes, also of the model in one go, and should cost nothing; once it says true, Error(kAborted). Throws what the runner throws.
Profile measure_profile(const LoadedModel& model, const Operators& operators, double seconds,
                        const std::function<bool()>& stop = {});

/// The same by `rounds` rounds, at least one, whatever they take. `go_on` is asked between nodes and told how many of how many
/// were measured, the warm-up included, and every 50 ms while the model runs in one go; at the end it hears of all of them. Once it says no, Error(kAborted); what it
/// throws goes to the caller.
Profile measure_rounds(const LoadedModel& model, const Operators& operators, int rounds,
                       const std::function<bool(std::size_t done, std::size_t of)>& go_on = {});

}  // namespace atl::infer
