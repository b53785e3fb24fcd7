// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Works of different backends as one: of a coalescing region whose operations went partly through an island's library.
/// Thread-safe as its parts are.
class WorkOfSeveral final : public c10d::Work {
 public:
  explicit WorkOfSeveral(std::vector<c10::intrusive_ptr<c10d::Work>> parts) : parts_(std::move(parts)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;

  /// Waits for all parts, each for at most `timeout`; throws the first error.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override;

  /// Of the parts' futures: completes with all their tensors.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace atl::pytorch
