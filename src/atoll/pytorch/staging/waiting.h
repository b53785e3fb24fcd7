// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Waits for operations of a library on the CPU that may have no way to end one, such as Gloo where a rank has stopped: who
/// waits here goes on when the library is given up, while the operation itself may last. Thread-safe.
class Waiting {
 public:
  Waiting();

  /// Whatever still waits for an operation is left to itself.
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// What work->wait(timeout) does, but throws Error(kAborted) once give_up() has been called. A work without a future is waited
  /// for on a thread of its own, which stays for the next one.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout = kNoTimeout);

  /// Lets everybody go on who waits, or comes to it.
  void give_up() noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace atl::pytorch
