// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "atoll/core/loop.h"

namespace atl::collectives {

/// Calls `dump` on `loop` whenever the process receives SIGUSR1. The signal handler is installed on first use, and only
/// if the program has none of its own. Returns a slot for unwatch_dump_signal, or -1 if every slot is taken (nothing is
/// watched then).
int watch_dump_signal(Loop& loop, std::function<void()> dump);

/// Must not be called on the loop thread. When it returns, `dump` is not running and will not be called again.
void unwatch_dump_signal(Loop& loop, int slot);

}  // namespace atl::collectives
