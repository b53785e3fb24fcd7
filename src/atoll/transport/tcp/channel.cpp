// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/link.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport {

TcpChannel::TcpChannel(TcpLink& link, const ChannelId& id, std::size_t window_bytes)
    : ChannelBase(link, id, window_bytes), link_(link), receive_window_(window_bytes) {}

bool TcpChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!may_send(header, payload)) return false;
  const std::uint64_t ahead = sent_.load(std::memory_order_relaxed) - released_.load(std::memory_order_acquire);
  return ahead + footprint(payload.size()) <= window_bytes_ && link_.send_frame(*this, header, payload);
}

const Frame* TcpChannel::front() {
  if (has_frame_) return &frame_;
  return front_of([this] { return look(); });
}

const Frame* TcpChannel::look() {
  const std::uint64_t popped = popped_.load(std::memory_order_relaxed);
  if (received_.load(std::memory_order_acquire) == popped) return nullptr;
  read_frame(ring_.at(popped), frame_);
  frame_.header.where = Payload::kHere;  // nothing is lent over TCP
  has_frame_ = true;
  return &frame_;
}

void TcpChannel::pop() {
  has_frame_ = false;
  const std::uint64_t popped = popped_.load(std::memory_order_relaxed) + footprint(frame_.payload.size());
  popped_.store(popped, std::memory_order_release);
  return_credit(popped);
}

void TcpChannel::return_credit(std::uint64_t released) {
  if (released - credited_ < receive_window_ / 4) return;
  credited_ = released;
  link_.send_credit(*this, released);
}

void TcpChannel::note_released_on_loop(std::uint64_t total, bool in_order) {
  const bool is_older = total < released_.load(std::memory_order_relaxed);
  if ((is_older && in_order) || total > sent_.load(std::memory_order_acquire)) {
    tcp::bad_message("credit for ", total, " bytes, which were never sent");
  }
  if (!is_older) released_.store(total, std::memory_order_release);
}

void TcpChannel::open_on_loop(std::uint32_t number, std::uint64_t window_bytes, bool again) {
  if (again && peer_number_ == number && receive_window_ == window_bytes) return;
  if (peer_number_ != 0) tcp::bad_message("a channel was opened twice");
  peer_number_ = number;
  receive_window_ = window_bytes;
}

std::byte* TcpChannel::begin_frame_on_loop(std::uint32_t payload_bytes) {
  const std::uint64_t received = received_.load(std::memory_order_relaxed);
  const std::uint64_t ahead = received - popped_.load(std::memory_order_acquire);
  if (payload_bytes > max_payload_of(receive_window_) || ahead + footprint(payload_bytes) > receive_window_) {
    tcp::bad_message("a frame of ", payload_bytes, " bytes exceeds the channel's credit");
  }
  receiving_ = true;
  dropping_ = is_closed();
  return dropping_ ? nullptr : ring_at(received);
}

std::byte* TcpChannel::ring_at(std::uint64_t position) {
  if (!ring_) ring_ = MappedRing::create_private(receive_window_);
  return ring_.at(position);
}

void TcpChannel::finish_frame_on_loop(std::uint32_t payload_bytes) {
  receiving_ = false;
  const std::uint64_t received = received_.load(std::memory_order_relaxed);
  if (!dropping_) {
    const auto header = read_as<FrameHeader>({ring_.at(received), sizeof(FrameHeader)});
    if (header.payload_bytes != payload_bytes) {
      tcp::bad_message("a frame of ", payload_bytes, " bytes has a header that states ", header.payload_bytes);
    }
  }
  received_.store(received + footprint(payload_bytes), std::memory_order_release);
  if (is_closed()) free_on_loop();
}

std::byte* TcpChannel::begin_segment_on_loop(std::uint64_t position, std::uint32_t bytes) {
  if (map_ == nullptr) map_ = std::make_unique<tcp::SegmentMap>(receive_window_);
  if (map_->has(position, bytes)) return nullptr;
  if (position + tcp::whole_units(bytes) - popped_.load(std::memory_order_acquire) > receive_window_) {
    tcp::bad_message("a segment of ", bytes, " bytes exceeds the channel's credit");
  }
  return is_closed() ? nullptr : ring_at(position);
}

bool TcpChannel::finish_segment_on_loop(std::uint64_t position, std::uint32_t bytes) {
  if (map_->has(position, bytes)) return false;  // it has come over another rail in the meantime
  map_->add(position, bytes);
  if (!is_closed()) return publish_frames();
  free_on_loop();
  return false;
}

void TcpChannel::finish_on_loop() {
  is_finished_ = true;
  if (map_ != nullptr) map_->finish();
}

/// Makes every complete frame visible to the receiver.
bool TcpChannel::publish_frames() {
  const std::uint64_t before = received_.load(std::memory_order_relaxed);
  std::uint64_t received = before;
  while (map_->end() - received >= sizeof(FrameHeader)) {
    const auto header = read_as<FrameHeader>({ring_at(received), sizeof(FrameHeader)});
    if (header.payload_bytes > max_payload_of(receive_window_)) {
      tcp::bad_message("a frame of ", header.payload_bytes, " bytes is too large");
    }
    if (map_->end() - received < footprint(header.payload_bytes)) break;
    received += footprint(header.payload_bytes);
  }
  received_.store(received, std::memory_order_release);
  return received != before;
}

void TcpChannel::free_on_loop() {
  if (receiving_) return;  // finish_frame_on_loop calls this again
  if (map_ != nullptr) {
    link_.drop_segments_on_loop(*this);
    received_.store(map_->end(), std::memory_order_release);
  }
  ring_ = MappedRing();
  const std::uint64_t received = received_.load(std::memory_order_relaxed);
  popped_.store(received, std::memory_order_release);
  return_credit(received);
}

}  // namespace atl::transport
