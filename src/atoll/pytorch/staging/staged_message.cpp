// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/staged_message.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "atoll/pytorch/staging/chunks.h"

namespace atl::pytorch {

StagedMessage::StagedMessage(std::shared_ptr<StagedOperation> operation, collectives::Segment memory,
                             std::shared_ptr<StagingClock> clock)
    : operation_(std::move(operation)),
      memory_(memory),
      clock_(std::move(clock)),
      pinned_(pinned_memory(memory.bytes, operation_->device())),
      host_{static_cast<std::byte*>(pinned_.data_ptr()), memory.bytes},
      part_bytes_(part_bytes_of(memory.bytes)) {}

std::size_t StagedMessage::parts() const noexcept {
  return std::max<std::size_t>(1, (memory_.bytes + part_bytes_ - 1) / part_bytes_);
}

std::uint64_t StagedMessage::end_of(std::size_t part) const noexcept {
  return std::min<std::uint64_t>(memory_.bytes, (part + 1) * part_bytes_);
}

at::Tensor StagedMessage::part_of(const at::Tensor& bytes, std::uint64_t begin, std::uint64_t end) {
  return bytes.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin));
}

void StagedMessage::load() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream to_host = operation_->streams().to_host();
  operation_->follow_caller(to_host);
  const c10::StreamGuard guard(to_host);
  const at::Tensor bytes = operation_->operands().bytes_of(memory_);
  note_use(bytes, to_host);
  loaded_.reserve(parts());
  for (std::size_t part = 0, begin = 0; part < parts(); begin = end_of(part++)) {
    auto started = clock_->begin(to_host);
    part_of(pinned_, begin, end_of(part)).copy_(part_of(bytes, begin, end_of(part)), /*non_blocking=*/true);
    clock_->end(std::move(started), to_host);
    loaded_.emplace_back(operation_->device().type());
    loaded_.back().record(to_host);
  }
}

// Until the caller's stream is ready, copies would hold up those of later messages.
void StagedMessage::arrived(std::uint64_t bytes) {
  const std::uint64_t whole = bytes / part_bytes_ * part_bytes_;
  if (whole > stored_ && operation_->caller_is_ready()) copy_to_device(whole);
}

void StagedMessage::store() {
  copy_to_device(memory_.bytes);
  operation_->chunk_stored();
}

void StagedMessage::copy_to_device(std::uint64_t end) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream to_device = operation_->streams().to_device();
  const c10::StreamGuard guard(to_device);
  operation_->follow_caller(to_device);
  const at::Tensor bytes = operation_->operands().bytes_of(memory_);
  auto started = clock_->begin(to_device);
  part_of(bytes, stored_, end).copy_(part_of(pinned_, stored_, end), /*non_blocking=*/true);
  clock_->end(std::move(started), to_device);
  note_use(bytes, to_device);
  stored_ = end;
}

}  // namespace atl::pytorch
