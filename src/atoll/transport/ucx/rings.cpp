// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/rings.h"

#include <algorithm>
#include <cstring>

#include "atoll/core/copy.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::ucx {

SendRing::SendRing(std::size_t window_bytes)
    : ring_(MappedRing::create_private(window_bytes)), done_ahead_(window_bytes) {}

bool SendRing::try_write(const FrameHeader& header, std::span<const std::byte> payload) {
  const std::uint64_t written = written_.load(std::memory_order_relaxed);
  const std::uint64_t bytes = footprint(payload.size());
  const std::uint64_t free_to = std::min(released(), done_.load(std::memory_order_acquire)) + ring_.data_bytes();
  if (written + bytes > free_to) return false;
  std::byte* const at = ring_.at(written);
  std::memcpy(at, &header, sizeof header);
  if (!payload.empty()) copy_bytes(at + sizeof header, payload.data(), payload.size());
  written_.store(written + bytes, std::memory_order_release);
  return true;
}

std::uint64_t SendRing::footprint_at(std::uint64_t position) const noexcept {
  return footprint(read_as<FrameHeader>({ring_.at(position), sizeof(FrameHeader)}).payload_bytes);
}

std::optional<SendRing::Piece> SendRing::next() {
  if (!has_next()) return std::nullopt;
  const std::uint64_t position = taken_;
  const std::byte* const at = ring_.at(position);
  const auto header = read_as<FrameHeader>({at, sizeof(FrameHeader)});
  taken_ += footprint(header.payload_bytes);
  return Piece{position, {at, sizeof header + header.payload_bytes}};
}

void SendRing::done(std::uint64_t position) noexcept {
  done_ahead_.set(position);
  std::uint64_t done = done_.load(std::memory_order_relaxed);
  while (done != taken_ && done_ahead_.take(done)) done += footprint_at(done);
  done_.store(done, std::memory_order_release);
}

void SendRing::release(std::uint64_t total) {
  if (total > taken_) tcp::bad_message("credit for ", total, " bytes, of which only ", taken_, " were sent");
  released_.store(std::max(total, released_.load(std::memory_order_relaxed)), std::memory_order_release);
}

void ReceiveRing::open_on_loop(std::uint64_t window_bytes) {
  const std::uint64_t known = this->window_bytes();
  if (known == window_bytes) return;
  if (known != 0) tcp::bad_message("a channel's window changed from ", known, " to ", window_bytes, " bytes");
  if (!is_valid_window(window_bytes)) tcp::bad_message("invalid window of ", window_bytes, " bytes for a channel");
  if (!is_closed_) ring_ = MappedRing::create_private(window_bytes);
  started_ = SlotBits(window_bytes);
  finished_ = SlotBits(window_bytes);
  window_bytes_.store(window_bytes, std::memory_order_release);
}

std::byte* ReceiveRing::begin_on_loop(std::uint64_t position, std::uint64_t bytes) {
  const std::uint64_t window = window_bytes();
  const std::uint64_t received = received_.load(std::memory_order_relaxed);
  const bool fits = bytes >= sizeof(FrameHeader) && bytes - sizeof(FrameHeader) <= max_payload_of(window);
  if (!fits || position % sizeof(FrameHeader) != 0) {
    tcp::bad_message("invalid frame of ", bytes, " bytes at position ", position);
  }
  const std::uint64_t end = position + footprint(bytes - sizeof(FrameHeader));
  if (is_closed_) {
    drop_to(end);
    return nullptr;
  }
  if (position < received || position - popped() > window || end - popped() > window || started_.test(position)) {
    tcp::bad_message("a frame of ", bytes, " bytes at position ", position,
                     ", which is outside the channel's credit or taken");
  }
  started_.set(position);
  ++under_way_;
  return ring_.at(position);
}

bool ReceiveRing::finish_on_loop(std::uint64_t position, std::uint64_t bytes) {
  --under_way_;
  if (is_closed_) {
    drop_to(position + footprint(bytes - sizeof(FrameHeader)));
    free_if_idle();
    return true;
  }
  if (read_as<FrameHeader>({ring_.at(position), sizeof(FrameHeader)}).payload_bytes + sizeof(FrameHeader) != bytes) {
    tcp::bad_message("a frame of ", bytes, " bytes states another size");
  }
  finished_.set(position);
  finished_to_ = std::max(finished_to_, position + footprint(bytes - sizeof(FrameHeader)));
  const std::uint64_t before = received_.load(std::memory_order_relaxed);
  std::uint64_t received = before;
  while (finished_.test(received)) {
    // A remote device may still write there, so this size is only trusted within bounds; look() checks it again.
    const std::uint64_t payload = read_as<FrameHeader>({ring_.at(received), sizeof(FrameHeader)}).payload_bytes;
    if (payload > max_payload_of(window_bytes())) tcp::bad_message("a frame changed after it had arrived");
    finished_.take(received);
    started_.take(received);
    received += footprint(payload);
  }
  received_.store(received, std::memory_order_release);
  return received != before;
}

// Perhaps not everything before `end` has arrived. The sender does not reuse a place during its own transfer from
// there, so the credit may run ahead.
void ReceiveRing::drop_to(std::uint64_t end) noexcept {
  received_.store(std::max(received_.load(std::memory_order_relaxed), end), std::memory_order_release);
  popped_.store(received_.load(std::memory_order_relaxed), std::memory_order_release);
}

void ReceiveRing::abandon_on_loop() noexcept {
  --under_way_;
  free_if_idle();
}

const Frame* ReceiveRing::look() {
  const std::uint64_t popped = popped_.load(std::memory_order_relaxed);
  const std::uint64_t ahead = received() - popped;
  if (ahead == 0) return nullptr;
  read_frame(ring_.at(popped), frame_);
  frame_.header.where = Payload::kHere;  // nothing is lent over UCX
  const std::size_t payload = frame_.payload.size();
  if (payload > max_payload_of(ring_.data_bytes()) || footprint(payload) > ahead)
    tcp::bad_message("a frame changed after it had arrived");
  has_frame_ = true;
  return &frame_;
}

void ReceiveRing::pop() noexcept {
  has_frame_ = false;
  popped_.store(popped_.load(std::memory_order_relaxed) + footprint(frame_.payload.size()), std::memory_order_release);
}

void ReceiveRing::close_on_loop() noexcept {
  is_closed_ = true;
  drop_to(finished_to_);
  free_if_idle();
}

void ReceiveRing::free_if_idle() noexcept {
  if (is_closed_ && under_way_ == 0) ring_ = MappedRing();
}

}  // namespace atl::transport::ucx
