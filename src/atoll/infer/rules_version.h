// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace atl::infer {

/// The version of the division rules. From a graph and a division, robot and server each derive the operators, the rows
/// that each side needs, the messages in which they come and what states hold. Any change of that raises the version:
/// in the rules of operators, in operators_of and program_of, and in the exchange and stages of plan. Releases with
/// different versions do not divide models between them (wire::Hello, wire::Welcome).
inline constexpr std::uint32_t kRulesVersion = 2;

}  // namespace atl::infer
