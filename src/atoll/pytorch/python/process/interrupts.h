// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace atl::pytorch {

/// Runs the handlers of the signals that have come, and throws what they raise, such as KeyboardInterrupt
/// (py::error_already_set). Python runs them on its main thread alone: on others this does nothing. Takes the GIL, so not
/// to be called with it released in every microsecond.
void check_signals();

/// Runs `body`, which needs no GIL, while this thread looks at signals every 50 ms. Where a handler raises, that is thrown at
/// once and `body` goes on without anybody who waits: it must own all that it uses. Throws what `body` throws otherwise. To
/// be called with the GIL released.
void interruptible(std::function<void()> body);

}  // namespace atl::pytorch
