// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace atl::pytorch {

/// Runs the handlers of signals that have arrived, and throws what they raise, such as KeyboardInterrupt
/// (py::error_already_set). Python runs handlers on its main thread only; on other threads this does nothing. Takes the
/// GIL, so it should not be called too often while the GIL is released.
void check_signals();

/// Runs `body`, which must not need the GIL, while this thread checks for signals every 50 ms. If a handler raises,
/// that is thrown at once and `body` continues in the background, so it must own all that it uses. Otherwise throws
/// what `body` throws. Must be called with the GIL released.
void interruptible(std::function<void()> body);

}  // namespace atl::pytorch
