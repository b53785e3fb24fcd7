// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "atoll/core/loop.h"

namespace atl::collectives {

/// Calls `dump` on `loop` whenever the process receives SIGUSR1. The handler is installed on first use and only where the program
/// has none of its own. Returns a slot for unwatch_dump_signal, or -1 when every slot is taken (then nothing is watched).
int watch_dump_signal(Loop& loop, std::function<void()> dump);

/// Must not be called on the loop thread. No call of `dump` is running or follows when it returns.
void unwatch_dump_signal(Loop& loop, int slot);

}  // namespace atl::collectives
