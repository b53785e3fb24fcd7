// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "atoll/plan/operators/operators.h"

namespace atl::plan {

/// A model whose operators were timed on a robot and a server.
struct PublishedProfile {
  std::string model;
  OperatorGraph graph;
  std::int64_t input_values = 0;  ///< channel values of pixels, or voxels
};

/// Reads a profile published with Intra-DP; tests/data/intradp/README.md describes the JSON. Layers without an output
/// and those that the authors exclude are left out: their consumers take their operands, and their time goes to the
/// operator of their first operand, or if that is the input, to the next layer. An operator's rows are those of the
/// dimension that the authors split; a share of them needs the same share of its operands' rows, without a halo. Costs
/// have no fixed part. A single output has the bytes that the authors send. `input_bytes` replaces what they send for
/// the input. Throws Error(kInvalidArgument) that names the layer and the key, also for profiles without the server's
/// times.
PublishedProfile published_profile(const std::string& json, std::optional<std::int64_t> input_bytes = {});

}  // namespace atl::plan
