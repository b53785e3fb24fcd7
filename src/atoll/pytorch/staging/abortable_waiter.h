// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Waits for works of a library on the CPU that cannot be ended, such as Gloo's when a rank has stopped: abort()
/// releases the waiting threads, while the operations themselves may continue. Thread-safe.
class AbortableWaiter {
 public:
  AbortableWaiter();

  /// Threads of this object that still wait for an operation are left behind.
  ~AbortableWaiter();
  AbortableWaiter(const AbortableWaiter&) = delete;
  AbortableWaiter& operator=(const AbortableWaiter&) = delete;

  /// Like work->wait(timeout), but throws Error(kAborted) once abort() has been called. A work without a future is
  /// waited for on a separate thread, which is kept for later works.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout = kNoTimeout);

  /// Makes all current and later calls of wait() throw, unless their work has completed.
  void abort() noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace atl::pytorch
