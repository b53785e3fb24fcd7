// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::plan {

/// What policies would do with a model over a link, at other rates, and over a recorded link: a request and its answer
/// as JSON (docs/plan-infer.md has both). Error(kInvalidArgument) that names the key, also for one that is not known,
/// and as make_plan() and replay().
std::string plan_operators(const std::string& request);

}  // namespace atl::plan
