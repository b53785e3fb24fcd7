// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/infer/run/division.h"

namespace atl::infer {

/// {"chunks": c, "dim": d, "input": t, "shares": [[robot begin, robot end, server begin, server end], ...]}
std::string to_json(const Division& division);

/// Reads what to_json wrote. Throws Error(kProtocol), which names the field, for anything else. Does not check whether
/// the division fits a graph.
Division division_from_json(const std::string& text);

}  // namespace atl::infer
