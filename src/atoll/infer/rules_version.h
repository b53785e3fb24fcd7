// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace atl::infer {

/// How models are divided. Robot and server derive from a graph and a division, each for itself, which operators there are, which
/// rows each side needs, in which messages they come and what states hold. It is raised with every change of that, here
/// in rules, in operators_of, program_of and the exchange and stages of plan: releases that differ in it do not divide a model
/// between them (wire::Hello, wire::Welcome).
inline constexpr std::uint32_t kRulesVersion = 1;

}  // namespace atl::infer
