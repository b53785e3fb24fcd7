// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/staged_chunk.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "atoll/pytorch/staging/chunks.h"

namespace atl::pytorch {

using collectives::Range;
using collectives::Segment;
using collectives::Space;

namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kUndivided = std::numeric_limits<std::uint64_t>::max();

std::uint64_t longest(const std::vector<Segment>& segments) {
  std::uint64_t bytes = 0;
  for (const Segment& segment : segments) bytes = std::max(bytes, segment.bytes);
  return bytes;
}

// Adds the bytes of a copy from `begin` to `end`, as far as it has them.
void add_part(std::vector<IslandStage::Copy>& parts, const IslandStage::Copy& copy, std::uint64_t begin,
              std::uint64_t end) {
  end = std::min(end, copy.range.bytes);
  if (begin >= end) return;
  const auto from = static_cast<std::int64_t>(begin);
  parts.push_back({{copy.range.space, copy.range.segment, copy.range.offset + begin, end - begin},
                   copy.bytes.narrow(0, from, static_cast<std::int64_t>(end) - from)});
}

LibraryOperations operations_of(const Library* library, bool on_accelerator) {
  if (!library) return {"", on_accelerator, nullptr};
  return {library->name(), on_accelerator, library->waiter()};
}

}  // namespace

StagedChunk::StagedChunk(std::shared_ptr<StagedOperation> operation, const StagingContext& context,
                         const collectives::Call& call, Slot* slot, std::shared_ptr<StagingClock> clock)
    : operation_(std::move(operation)),
      stage_(context, operation_->operands(), call),
      bridge_(call),
      slot_(slot),
      clock_(std::move(clock)),
      inward_(operations_of(context.library.get(), operation_->on_accelerator())),
      comes_in_parts_(operation_->on_accelerator() && is_direct(call.operation)),
      part_bytes_(comes_in_parts_ ? part_bytes_of(std::max(longest(call.input), longest(call.output))) : kUndivided),
      stored_(call.output.size()) {
  const std::uint64_t bytes = lay_out(call);
  if (!slot_ || static_cast<std::uint64_t>(slot_->memory.numel()) < bytes) {
    own_.memory = pinned_memory(bytes, operation_->device());
    slot_ = &own_;
  }
  auto* base = static_cast<std::byte*>(slot_->memory.data_ptr());
  for (std::size_t i = 0; i < bridge_.input.size(); ++i) bridge_.input[i].data = base + input_offsets_[i];
  for (std::size_t i = 0; i < bridge_.output.size(); ++i) bridge_.output[i].data = base + output_offsets_[i];
  bridge_.library_inside = context.library != nullptr;
}

// An output that is also an input shares its memory on the host too. What stays on the device takes none: its input and
// output get one address, so the call does not copy it.
std::uint64_t StagedChunk::lay_out(const collectives::Call& call) {
  std::uint64_t end = 0;
  const auto& own = stage_.own();
  const auto place = [&](const Segment& segment) {
    const std::uint64_t offset = end;
    end += (segment.bytes + kLine - 1) / kLine * kLine;
    return offset;
  };
  for (std::size_t i = 0; i < call.input.size(); ++i) {
    input_offsets_.push_back(own && own->input == i ? 0 : place(call.input[i]));
  }
  for (std::size_t i = 0; i < call.output.size(); ++i) {
    const Segment& segment = call.output[i];
    if (own && own->output == i) {
      output_offsets_.push_back(input_offsets_[own->input]);
      continue;
    }
    std::size_t same = 0;
    while (same < call.input.size() &&
           (call.input[same].data != segment.data || call.input[same].bytes != segment.bytes))
      ++same;
    output_offsets_.push_back(same < call.input.size() ? input_offsets_[same] : place(segment));
  }
  return end;
}

at::Tensor StagedChunk::host_bytes(const Range& range) const {
  const auto& offsets = range.space == Space::kInput ? input_offsets_ : output_offsets_;
  return slot_->memory.narrow(0, static_cast<std::int64_t>(offsets[range.segment] + range.offset),
                              static_cast<std::int64_t>(range.bytes));
}

void StagedChunk::load() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!operation_->on_accelerator()) {
    arriving_ = stage_.fold(inward_);
    return;
  }
  const CopyStreams& streams = operation_->streams();
  std::vector<IslandStage::Copy> copies;
  {
    const c10::StreamGuard guard(streams.in());
    operation_->follow_caller(streams.in());
    copies = stage_.fold(inward_);
  }
  c10::Event brought(operation_->device().type());
  brought.record(streams.in());
  brought.block(streams.to_host());
  if (slot_->vacant) slot_->vacant->block(streams.to_host());
  slot_->vacant.reset();
  const c10::StreamGuard guard(streams.to_host());
  std::uint64_t end = 0;
  for (const IslandStage::Copy& copy : copies) end = std::max(end, copy.range.bytes);
  std::uint64_t begin = 0;
  do {
    std::vector<IslandStage::Copy> part;
    for (const IslandStage::Copy& copy : copies) add_part(part, copy, begin, begin + part_bytes_);
    auto started = clock_->begin(streams.to_host());
    copy_to_host(part);
    clock_->end(std::move(started), streams.to_host());
    loaded_.emplace_back(operation_->device().type());
    loaded_.back().record(streams.to_host());
  } while ((begin += part_bytes_) < end);
}

void StagedChunk::copy_to_host(const std::vector<IslandStage::Copy>& copies) {
  for (const IslandStage::Copy& copy : copies) {
    host_bytes(copy.range).copy_(copy.bytes, /*non_blocking=*/true);
    if (operation_->on_accelerator()) note_use(copy.bytes, operation_->streams().to_host());
  }
}

bool StagedChunk::is_loaded() {
  if (operation_->on_accelerator()) {
    if (loaded_.empty() || !loaded_.front().query()) return false;
    inward_.check();
    return true;
  }
  inward_.wait();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto begin = std::chrono::steady_clock::now();
  copy_to_host(arriving_);
  clock_->add(std::chrono::steady_clock::now() - begin);
  arriving_.clear();
  return true;
}

bool StagedChunk::is_loaded(std::uint32_t segment, std::uint64_t end) {
  if (stage_.own() && stage_.own()->input == segment) return true;
  const std::uint64_t parts = (end + part_bytes_ - 1) / part_bytes_;
  while (parts_here_ < parts && loaded_[parts_here_].query()) ++parts_here_;
  return parts_here_ >= parts;
}

// Until the caller's stream is ready, copies would hold up those of later operations.
void StagedChunk::arrived(std::uint32_t segment, std::uint64_t end) {
  const std::uint64_t whole = end / part_bytes_ * part_bytes_;
  if (whole <= stored_[segment] || !operation_->caller_is_ready()) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream to_device = operation_->streams().to_device();
  const c10::StreamGuard guard(to_device);
  operation_->follow_caller(to_device);
  copy_own();
  if (!leaving_) leaving_ = stage_.place_results();
  std::vector<IslandStage::Copy> parts;
  for (const IslandStage::Copy& copy : *leaving_) {
    if (copy.range.segment == segment) add_part(parts, copy, stored_[segment], whole);
  }
  stored_[segment] = whole;
  auto started = clock_->begin(to_device);
  copy_to_device(parts);
  clock_->end(std::move(started), to_device);
}

void StagedChunk::copy_own() {
  if (std::exchange(own_is_copied_, true)) return;
  const auto copy = stage_.own_copy();
  if (!copy) return;
  copy->second.copy_(copy->first, /*non_blocking=*/true);
  for (const at::Tensor& bytes : {copy->first, copy->second}) note_use(bytes, operation_->streams().to_device());
}

void StagedChunk::store() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!operation_->on_accelerator()) {
    const auto begin = std::chrono::steady_clock::now();
    copy_to_device(stage_.place_results());
    clock_->add(std::chrono::steady_clock::now() - begin);
    stage_.spread(operation_->outward());
    return operation_->chunk_stored();
  }
  const CopyStreams& streams = operation_->streams();
  c10::Event arrived(operation_->device().type());
  {
    const c10::StreamGuard guard(streams.to_device());
    operation_->follow_caller(streams.to_device());
    copy_own();
    if (!leaving_) leaving_ = stage_.place_results();
    std::vector<IslandStage::Copy> rest;
    for (const IslandStage::Copy& copy : *leaving_) add_part(rest, copy, stored_[copy.range.segment], copy.range.bytes);
    auto started = clock_->begin(streams.to_device());
    copy_to_device(rest);
    clock_->end(std::move(started), streams.to_device());
    arrived.record(streams.to_device());
  }
  const c10::StreamGuard guard(streams.out());
  arrived.block(streams.out());
  stage_.spread(operation_->outward());
  slot_->vacant = std::move(arrived);
  operation_->chunk_stored();
}

void StagedChunk::copy_to_device(const std::vector<IslandStage::Copy>& copies) {
  for (const IslandStage::Copy& copy : copies) {
    copy.bytes.copy_(host_bytes(copy.range), /*non_blocking=*/true);
    if (!operation_->on_accelerator()) continue;
    note_use(copy.bytes, operation_->streams().to_device());
    note_use(copy.bytes, operation_->streams().out());
  }
}

}  // namespace atl::pytorch
