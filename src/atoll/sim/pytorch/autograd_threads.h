// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::sim {

/// Ends the threads on which PyTorch's autograd serves devices and waits for at most two seconds until they are gone.
/// They release Python objects of a backward pass only after its caller has continued, and a thread that does so while
/// the interpreter is finalized ends the process ("terminate called without an active exception"). No backward pass may
/// follow. The caller must not hold the GIL.
void end_autograd_threads();

}  // namespace atl::sim
