// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/waiting.h"
#include "atoll/pytorch/staging/watch.h"

namespace atl::pytorch {

/// Operations that passed to an island's library, as one Work; or works of different backends, of a coalescing region that
/// used both. Thread-safe as its parts are.
class WorkOfLibrary final : public c10d::Work {
 public:
  /// Throws what is to be thrown for an error of a part.
  using Explain = std::function<void(const std::exception_ptr&)>;

  /// `entry` of `watch`, for parts whose waiters go on before they have ended; null for others. `waiting`: for parts on the CPU.
  WorkOfLibrary(std::vector<c10::intrusive_ptr<c10d::Work>> parts, Explain explain, std::weak_ptr<Watch> watch,
                Watch::EntryPtr entry, std::shared_ptr<Waiting> waiting)
      : parts_(std::move(parts)),
        explain_(std::move(explain)),
        watch_(std::move(watch)),
        entry_(std::move(entry)),
        waiting_(std::move(waiting)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;

  /// Waits for all parts, each for at most `timeout`; throws the first error, explained.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;

  /// Of the parts' futures: completes with all their tensors.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void note_reliance() const;

  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  const Explain explain_;
  const std::weak_ptr<Watch> watch_;  // a Work may outlive its group, and does not keep threads alive
  const Watch::EntryPtr entry_;
  const std::shared_ptr<Waiting> waiting_;
};

}  // namespace atl::pytorch
