// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/infer/session/divisions.h"
#include "atoll/infer/session/session.h"

namespace atl::infer {

/// Error(kInvalidArgument), which names those that are known, for a policy that is not.
void check_policy(const std::string& policy);

/// Error(kInvalidArgument), which names the inputs, for kJpeg where none of them is an image.
void check_lossy(const Graph& graph, wire::Codec lossy);

/// How a session with these options plans.
Divisions::Options division_options(const SessionOptions& options);

}  // namespace atl::infer
