// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::sim {

/// Ends the threads on which PyTorch's autograd serves devices and waits until they are gone, for at most two seconds. They
/// let go of a backward pass's objects of Python only after its caller has gone on: one that does so while the interpreter is
/// taken down ends the process ("terminate called without an active exception"). No backward pass may follow. The
/// caller must not hold the GIL.
void end_autograd_threads();

}  // namespace atl::sim
