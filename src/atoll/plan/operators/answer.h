// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::plan {

/// Plans a model over a link by several policies, at other rates, and over a recorded link; docs/plan-infer.md
/// describes the JSON of request and answer. Throws Error(kInvalidArgument) that names the key if the request is
/// invalid or a key unknown, and as make_plan() and replay().
std::string plan_operators(const std::string& request);

}  // namespace atl::plan
