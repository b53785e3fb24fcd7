// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "atoll/infer/session/divisions.h"
#include "atoll/infer/session/session.h"

namespace atl::infer {

/// The options. Error(kInvalidArgument) for a policy that is not known, which names those that are, and for chunks that the
/// wire does not take.
SessionOptions checked_options(SessionOptions options);

/// Error(kInvalidArgument) where the graph has another number of inputs.
void check_count(const Graph& graph, std::size_t inputs);

/// The deadline. Error(kInvalidArgument) for one that is no number.
std::optional<std::chrono::duration<double>> checked_deadline(std::optional<std::chrono::duration<double>> deadline);

/// Error(kInvalidArgument), which names the inputs, for kJpeg where none of them is an image.
void check_lossy(const Graph& graph, wire::Codec lossy);

/// How a session with these options plans.
Divisions::Options division_options(const SessionOptions& options);

}  // namespace atl::infer
