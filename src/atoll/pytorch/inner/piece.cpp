// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/piece.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <chrono>
#include <utility>

namespace atl::pytorch {

using collectives::Range;
using collectives::Segment;
using collectives::Space;

namespace {

constexpr std::uint64_t kLine = 64;

Pending pending_of(const Library* library, bool on_accelerator) {
  if (!library) return {"", on_accelerator, nullptr};
  return {library->name(), on_accelerator, library->waiting()};
}

}  // namespace

Piece::Piece(std::shared_ptr<Trip> trip, const Surroundings& around, const collectives::Call& call, Slot* slot,
             std::shared_ptr<StagingClock> clock)
    : trip_(std::move(trip)),
      inside_(around, trip_->operands(), call),
      bridge_(call),
      slot_(slot),
      clock_(std::move(clock)),
      inward_(pending_of(around.library.get(), trip_->on_accelerator())) {
  const std::uint64_t bytes = lay_out(call);
  if (!slot_ || static_cast<std::uint64_t>(slot_->memory.numel()) < bytes) {
    own_.memory = pinned_memory(bytes, trip_->device());
    slot_ = &own_;
  }
  auto* base = static_cast<std::byte*>(slot_->memory.data_ptr());
  for (std::size_t i = 0; i < bridge_.input.size(); ++i) bridge_.input[i].data = base + input_offsets_[i];
  for (std::size_t i = 0; i < bridge_.output.size(); ++i) bridge_.output[i].data = base + output_offsets_[i];
  bridge_.library_inside = around.library != nullptr;
}

// An output that is an input of the operation is the same memory on the host too.
std::uint64_t Piece::lay_out(const collectives::Call& call) {
  std::uint64_t end = 0;
  const auto place = [&](const Segment& segment) {
    const std::uint64_t offset = end;
    end += (segment.bytes + kLine - 1) / kLine * kLine;
    return offset;
  };
  for (const Segment& segment : call.input) input_offsets_.push_back(place(segment));
  for (const Segment& segment : call.output) {
    std::size_t same = 0;
    while (same < call.input.size() &&
           (call.input[same].data != segment.data || call.input[same].bytes != segment.bytes))
      ++same;
    output_offsets_.push_back(same < call.input.size() ? input_offsets_[same] : place(segment));
  }
  return end;
}

at::Tensor Piece::host_bytes(const Range& range) const {
  const auto& offsets = range.space == Space::kInput ? input_offsets_ : output_offsets_;
  return slot_->memory.narrow(0, static_cast<std::int64_t>(offsets[range.segment] + range.offset),
                              static_cast<std::int64_t>(range.bytes));
}

void Piece::load() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!trip_->on_accelerator()) {
    arriving_ = inside_.bring(inward_);
    return;
  }
  const CopyStreams& streams = trip_->streams();
  std::vector<Inside::Copy> copies;
  {
    const c10::StreamGuard guard(streams.in());
    trip_->follow_caller(streams.in());
    copies = inside_.bring(inward_);
  }
  c10::Event brought(trip_->device().type());
  brought.record(streams.in());
  brought.block(streams.to_host());
  if (slot_->vacant) slot_->vacant->block(streams.to_host());
  slot_->vacant.reset();
  const c10::StreamGuard guard(streams.to_host());
  auto begun = clock_->begin(streams.to_host());
  copy_to_host(copies);
  clock_->end(std::move(begun), streams.to_host());
  loaded_.emplace(trip_->device().type());
  loaded_->record(streams.to_host());
}

void Piece::copy_to_host(const std::vector<Inside::Copy>& copies) {
  for (const Inside::Copy& copy : copies) {
    host_bytes(copy.range).copy_(copy.bytes, /*non_blocking=*/true);
    if (trip_->on_accelerator()) note_use(copy.bytes, trip_->streams().to_host());
  }
}

bool Piece::is_loaded() {
  if (trip_->on_accelerator()) {
    if (!loaded_ || !loaded_->query()) return false;
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

void Piece::store() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!trip_->on_accelerator()) {
    const auto begin = std::chrono::steady_clock::now();
    copy_to_device(inside_.take());
    clock_->add(std::chrono::steady_clock::now() - begin);
    inside_.spread(trip_->outward());
    return trip_->piece_stored();
  }
  const CopyStreams& streams = trip_->streams();
  c10::Event arrived(trip_->device().type());
  {
    const c10::StreamGuard guard(streams.to_device());
    trip_->follow_caller(streams.to_device());
    const auto copies = inside_.take();
    auto begun = clock_->begin(streams.to_device());
    copy_to_device(copies);
    clock_->end(std::move(begun), streams.to_device());
    arrived.record(streams.to_device());
  }
  const c10::StreamGuard guard(streams.out());
  arrived.block(streams.out());
  inside_.spread(trip_->outward());
  slot_->vacant = std::move(arrived);
  trip_->piece_stored();
}

void Piece::copy_to_device(const std::vector<Inside::Copy>& copies) {
  for (const Inside::Copy& copy : copies) {
    copy.bytes.copy_(host_bytes(copy.range), /*non_blocking=*/true);
    if (!trip_->on_accelerator()) continue;
    note_use(copy.bytes, trip_->streams().to_device());
    note_use(copy.bytes, trip_->streams().out());
  }
}

}  // namespace atl::pytorch
