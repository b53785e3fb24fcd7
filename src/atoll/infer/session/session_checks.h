// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "atoll/infer/session/divisions.h"
#include "atoll/infer/session/session.h"

namespace atl::infer {

/// Error(kInvalidArgument) for a policy that is not known, which names those that are, for chunks that the wire does not
/// take, and for a server's address that is none.
void check_options(const SessionOptions& options);
/// The options, checked so, and for this graph (check_lossy).
SessionOptions checked_options(SessionOptions options, const Graph& graph);

/// Error(kInvalidArgument) where the graph has another number of inputs.
void check_count(const Graph& graph, std::size_t inputs);

/// The deadline. Error(kInvalidArgument) for one that is no number.
std::optional<std::chrono::duration<double>> checked_deadline(std::optional<std::chrono::duration<double>> deadline);

/// Error(kInvalidArgument), which names the inputs, for kJpeg where none of them is an image.
void check_lossy(const Graph& graph, wire::Codec lossy);

/// What a message says for so many seconds: at least 1, and what the wire takes.
std::uint64_t microseconds(double seconds);

/// What was planned for the last inference.
void fill(SessionReport& report, const Outcome& last);
/// The record with what the outcome tells.
InferenceRecord with_outcome(InferenceRecord record, const Outcome& outcome);

/// How a session with these options plans.
Divisions::Options division_options(const SessionOptions& options);

}  // namespace atl::infer
