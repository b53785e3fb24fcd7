// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/piece.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "atoll/pytorch/staging/pieces.h"

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

// The bytes of a copy from `begin` to `end`, as far as it has them.
void add_part(std::vector<Inside::Copy>& parts, const Inside::Copy& copy, std::uint64_t begin, std::uint64_t end) {
  end = std::min(end, copy.range.bytes);
  if (begin >= end) return;
  const auto from = static_cast<std::int64_t>(begin);
  parts.push_back({{copy.range.space, copy.range.segment, copy.range.offset + begin, end - begin},
                   copy.bytes.narrow(0, from, static_cast<std::int64_t>(end) - from)});
}

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
      inward_(pending_of(around.library.get(), trip_->on_accelerator())),
      comes_in_parts_(trip_->on_accelerator() && is_direct(call.operation)),
      part_bytes_(comes_in_parts_ ? part_bytes_of(std::max(longest(call.input), longest(call.output))) : kUndivided),
      stored_(call.output.size()) {
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

// An output that is an input of the operation is the same memory on the host too. What stays on the device has none: both
// ends have one address, so that the call leaves it alone.
std::uint64_t Piece::lay_out(const collectives::Call& call) {
  std::uint64_t end = 0;
  const auto& own = inside_.own();
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
  std::uint64_t end = 0;
  for (const Inside::Copy& copy : copies) end = std::max(end, copy.range.bytes);
  std::uint64_t begin = 0;
  do {
    std::vector<Inside::Copy> part;
    for (const Inside::Copy& copy : copies) add_part(part, copy, begin, begin + part_bytes_);
    auto begun = clock_->begin(streams.to_host());
    copy_to_host(part);
    clock_->end(std::move(begun), streams.to_host());
    loaded_.emplace_back(trip_->device().type());
    loaded_.back().record(streams.to_host());
  } while ((begin += part_bytes_) < end);
}

void Piece::copy_to_host(const std::vector<Inside::Copy>& copies) {
  for (const Inside::Copy& copy : copies) {
    host_bytes(copy.range).copy_(copy.bytes, /*non_blocking=*/true);
    if (trip_->on_accelerator()) note_use(copy.bytes, trip_->streams().to_host());
  }
}

bool Piece::is_loaded() {
  if (trip_->on_accelerator()) {
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

bool Piece::is_loaded(std::uint32_t segment, std::uint64_t end) {
  if (inside_.own() && inside_.own()->input == segment) return true;
  const std::uint64_t parts = (end + part_bytes_ - 1) / part_bytes_;
  while (parts_here_ < parts && loaded_[parts_here_].query()) ++parts_here_;
  return parts_here_ >= parts;
}

// Until the caller's stream is there, copies would hold up those of other operations behind it.
void Piece::arrived(std::uint32_t segment, std::uint64_t end) {
  const std::uint64_t whole = end / part_bytes_ * part_bytes_;
  if (whole <= stored_[segment] || !trip_->caller_is_there()) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream to_device = trip_->streams().to_device();
  const c10::StreamGuard guard(to_device);
  trip_->follow_caller(to_device);
  keep_own();
  if (!leaving_) leaving_ = inside_.take();
  std::vector<Inside::Copy> parts;
  for (const Inside::Copy& copy : *leaving_) {
    if (copy.range.segment == segment) add_part(parts, copy, stored_[segment], whole);
  }
  stored_[segment] = whole;
  auto begun = clock_->begin(to_device);
  copy_to_device(parts);
  clock_->end(std::move(begun), to_device);
}

void Piece::keep_own() {
  if (std::exchange(own_is_kept_, true)) return;
  const auto copy = inside_.own_copy();
  if (!copy) return;
  copy->second.copy_(copy->first, /*non_blocking=*/true);
  for (const at::Tensor& bytes : {copy->first, copy->second}) note_use(bytes, trip_->streams().to_device());
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
    keep_own();
    if (!leaving_) leaving_ = inside_.take();
    std::vector<Inside::Copy> rest;
    for (const Inside::Copy& copy : *leaving_) add_part(rest, copy, stored_[copy.range.segment], copy.range.bytes);
    auto begun = clock_->begin(streams.to_device());
    copy_to_device(rest);
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
