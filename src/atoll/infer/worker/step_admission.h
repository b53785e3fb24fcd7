// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/run/program.h"
#include "atoll/infer/safety/admit.h"

// The calls that a worker makes besides the whole nodes of its model: operators for some of their rows, and the small
// graphs that make states of parts and results from states. They have to be as harmless as the model, which was
// admitted.
namespace atl::infer {

/// Throws Error(kRefused), as safety::admit does, unless every step of the program is admitted, and throws as slice()
/// does for rows that cannot be computed. The time depends only on the program's length.
void admit_program(const Graph& graph, const Operators& operators, const Program& program,
                   const safety::Limits& limits);

/// The parts that measure_profile computes besides whole nodes.
Program measured_parts(const Operators& operators);

}  // namespace atl::infer
