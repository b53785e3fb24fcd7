// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "atoll/plan/operators.h"

namespace atl::plan {

/// A model that was profiled operator by operator on a robot and a server.
struct PublishedProfile {
  std::string model;
  OperatorGraph graph;
  std::int64_t input_values = 0;  ///< numbers in the input, each a pixel's channel or a voxel
};

/// Reads the JSON of a file of tests/data/intradp/profiles, whose README describes it. Layers without an output and those that
/// the authors excluded are left out: their consumers take their operands, and their time goes to the first operand's operator,
/// or when that is an input, to the next layer that runs. The rows of an operator are those of the dimension that the authors split;
/// a share of its rows needs the same share of its operands' rows. `input_bytes` replaces what the authors send, for another
/// encoding. Error(kInvalidArgument) that names the layer and the key; also for a profile without the server's times.
PublishedProfile published_profile(const std::string& json, std::optional<std::int64_t> input_bytes = {});

}  // namespace atl::plan
