// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "atoll/infer/session/planner.h"
#include "atoll/infer/session/session.h"

namespace atl::infer {

/// Throws Error(kInvalidArgument) for an unknown policy (and names the known ones), a number of chunks that messages
/// cannot hold, and an invalid server address.
void check_options(const SessionOptions& options);
/// The options, checked by check_options and, for this graph, by check_lossy.
SessionOptions checked_options(SessionOptions options, const Graph& graph);

/// Throws Error(kInvalidArgument) if the graph has another number of inputs.
void check_count(const Graph& graph, std::size_t inputs);

/// Returns the deadline. Throws Error(kInvalidArgument) for NaN.
std::optional<std::chrono::duration<double>> checked_deadline(std::optional<std::chrono::duration<double>> deadline);

/// Throws Error(kInvalidArgument), which names the inputs, for kJpeg if none of them is an image.
void check_lossy(const Graph& graph, wire::Codec lossy);

/// Seconds as microseconds in a message: at least 1, and at most wire::kMaxMicroseconds.
std::uint64_t microseconds(double seconds);

/// Sets what was planned for the last inference.
void fill(SessionReport& report, const Outcome& last);
/// Adds the outcome's figures to the record.
InferenceRecord with_outcome(InferenceRecord record, const Outcome& outcome);

/// The options of the planner of a session with these options.
Planner::Options planner_options(const SessionOptions& options);

}  // namespace atl::infer
