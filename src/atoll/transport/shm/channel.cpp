// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/channel.h"

#include <string>
#include <utility>

namespace atl::transport {

bool ShmChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  const LinkState state = link_.state();
  if (state != LinkState::kUp) {
    if (state == LinkState::kConnecting) return false;
    link_.throw_error();
  }
  if (payload.size() > max_payload() || header.payload_bytes != payload.size()) {
    throw Error(ErrorKind::kInvalidArgument, "a frame of " + std::to_string(payload.size()) + " bytes, announced as " +
                                                 std::to_string(header.payload_bytes) + ", on a channel that takes " +
                                                 std::to_string(max_payload()));
  }
  if (is_closed()) throw Error(ErrorKind::kAborted, "the channel to " + link_.peer_name() + " was closed by this side");
  try {
    if (!writer_->try_write(header, payload)) return false;
  } catch (const Error& error) {
    fail(error);
  }
  ring_peer();
  return true;
}

const Frame* ShmChannel::front() {
  if (const Frame* const frame = look()) return frame;
  const LinkState state = link_.state();
  if (state == LinkState::kConnecting || state == LinkState::kUp) return nullptr;
  // The peer is gone: everything that it wrote is visible now.
  if (const Frame* const frame = look()) return frame;
  link_.throw_error();
}

const Frame* ShmChannel::look() {
  RingReader* const reader = reader_.load(std::memory_order_acquire);
  if (reader == nullptr) {
    if (is_closed())
      throw Error(ErrorKind::kAborted, "the channel from " + link_.peer_name() + " was closed by this side");
    return nullptr;
  }
  try {
    return reader->front();
  } catch (const Error& error) {
    fail(error);
  }
}

void ShmChannel::pop() {
  reader_.load(std::memory_order_relaxed)->pop();
  ring_peer();
}

void ShmChannel::ring_peer() noexcept {
  if (BellWords* const bell = peer_bell_.load(std::memory_order_acquire)) ring(*bell);
}

void ShmChannel::fail(const Error& error) {
  const Error named(error.kind(), link_.peer_name() + ": " + error.what());
  link_.fail_later(named);
  throw Error(named);
}

Fd ShmChannel::open() {
  writer_ = std::make_unique<RingWriter>(window_bytes_);
  return writer_->take_memory();
}

bool ShmChannel::accept(std::unique_ptr<RingReader> ring) {
  if (reader_owner_ != nullptr) return false;
  if (is_closed()) {
    ring->close();
    ring_peer();
    return true;
  }
  reader_owner_ = std::move(ring);
  reader_.store(reader_owner_.get(), std::memory_order_release);
  return true;
}

void ShmChannel::close() noexcept {
  is_closed_.store(true, std::memory_order_release);
  reader_.store(nullptr, std::memory_order_release);
  if (reader_owner_ != nullptr) reader_owner_->close();
  ring_peer();
  reader_owner_.reset();
  writer_.reset();
}

}  // namespace atl::transport
