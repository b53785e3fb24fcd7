// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/abortable_waiter.h"
#include "atoll/pytorch/staging/watchdog.h"

namespace atl::pytorch {

/// One Work of operations that were passed to an island's library, or of works of different backends in a coalescing
/// region that used both. As thread-safe as its parts.
class LibraryWork final : public c10d::Work {
 public:
  /// Throws the exception that an error of a part becomes.
  using Explain = std::function<void(const std::exception_ptr&)>;

  /// `entry`: in `watchdog`, for parts whose waiting threads continue before they have ended; null for others.
  /// `waiter`: for parts on the CPU, else null.
  LibraryWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts, Explain explain, std::weak_ptr<Watchdog> watchdog,
              Watchdog::EntryPtr entry, std::shared_ptr<AbortableWaiter> waiter)
      : parts_(std::move(parts)),
        explain_(std::move(explain)),
        watchdog_(std::move(watchdog)),
        entry_(std::move(entry)),
        waiter_(std::move(waiter)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;

  /// Waits for all parts, each for at most `timeout`; throws the first error, explained.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;

  /// Completes with the tensors of all parts' futures.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void note_reliance() const;

  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  const Explain explain_;
  const std::weak_ptr<Watchdog> watchdog_;  // weak: a Work may outlive its group, and must not keep threads alive
  const Watchdog::EntryPtr entry_;
  const std::shared_ptr<AbortableWaiter> waiter_;
};

}  // namespace atl::pytorch
