// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>

#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Stands for operations for which an accelerator's library returned no Work: NCCL and oneCCL return none for
/// synchronous ones, which they put into the caller's current stream. Completed once that stream has passed them, also
/// where the library has failed. Keeps none of their tensors alive. Thread-safe.
class StreamWork final : public c10d::Work {
 public:
  /// Call it right after the operations have been issued, on the thread that issued them.
  explicit StreamWork(c10::Device device);

  bool isCompleted() override { return passed_.query(); }
  bool isSuccess() const override { return passed_.query(); }
  std::exception_ptr exception() const override { return nullptr; }

  /// Makes the calling thread's current stream wait; the host too, if a timeout is given.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return {}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  c10::Event passed_;
};

}  // namespace atl::pytorch
