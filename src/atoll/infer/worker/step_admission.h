// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/run/program.h"
#include "atoll/infer/safety/admit.h"

// What a worker calls besides the nodes of its model as they are: operators for some of their rows, and the small graphs that
// make states of parts and results of these. That has to be as harmless as the model, which was admitted.
namespace atl::infer {

/// Throws Error(kRefused), as safety::admit, unless every step of the program is admitted; as slice() for rows that cannot be
/// computed. In time that grows with the program's length alone.
void admit_program(const Graph& graph, const Operators& operators, const Program& program,
                   const safety::Limits& limits);

/// The parts that measure_profile computes beside whole nodes.
Program measured_parts(const Operators& operators);

}  // namespace atl::infer
