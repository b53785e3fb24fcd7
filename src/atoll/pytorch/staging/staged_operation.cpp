// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/staged_operation.h"

namespace atl::pytorch {

StagedOperation::StagedOperation(Operands operands, std::shared_ptr<const CopyStreams> streams, StreamOf last,
                                 const Library* library, std::size_t chunks)
    : operands_(std::move(operands)),
      device_(operands_.device()),
      streams_(std::move(streams)),
      last_(last),
      chunks_left_(chunks),
      outward_(library ? library->name() : "", !device_.is_cpu(), library ? library->waiter() : nullptr) {
  if (!on_accelerator()) return;
  refuse_capture(device_);
  caller_event_.emplace(device_.type());
  caller_event_->record(current_stream(device_));
}

void StagedOperation::chunk_stored() {
  if (--chunks_left_ > 0 || !on_accelerator()) return;
  const c10::StreamGuard guard(last_stream());
  operands_.copy_back();
  for (const at::Tensor& tensor : operands_.tensors()) note_use(tensor, last_stream());
  arrived_.emplace(device_.type());
  arrived_->record(last_stream());
}

void StagedOperation::finish() {
  if (on_accelerator()) return;
  outward_.wait();
  operands_.copy_back();
}

void StagedOperation::wait_on_current_stream() const {
  if (arrived_) arrived_->block(current_stream(device_));
}

}  // namespace atl::pytorch
