// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/channel.h"

#include <utility>

#include "atoll/transport/shm/link.h"

namespace atl::transport {

ShmChannel::ShmChannel(ShmLink& link, const ChannelId& id, std::size_t window_bytes)
    : ChannelBase(link, id, window_bytes), link_(link) {}

bool ShmChannel::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!may_send(header, payload)) return false;
  if (!guarded([&] { return writer_->try_write(header, payload); })) return false;
  ring_peer();
  return true;
}

bool ShmChannel::can_lend() const noexcept { return link_.has_arena(); }

std::optional<Payload> ShmChannel::try_lend(const FrameHeader& header, std::span<const std::byte> payload,
                                            const ArenaPlace& place) {
  if (!may_send(header, payload)) return std::nullopt;
  if (header.where != Payload::kThere && passed_slab_ != place.slab) {
    if (!link_.pass_slab(place.slab)) {
      FrameHeader copied = header;
      copied.where = Payload::kHere;
      return try_send(copied, payload) ? std::optional(copied.where) : std::nullopt;
    }
    passed_slab_ = place.slab;
  }
  if (!guarded([&] { return writer_->try_lend(header, place); })) return std::nullopt;
  ring_peer();
  return header.where;
}

// While the link connects, its loop may be making the writer; nothing has been lent by then.
bool ShmChannel::has_writer() const noexcept { return link_.state() != LinkState::kConnecting && writer_ != nullptr; }

bool ShmChannel::has_returned() {
  return !has_writer() || guarded([&] { return writer_->has_returned(); });
}

void ShmChannel::revoke() noexcept {
  if (has_writer()) writer_->revoke();
}

std::optional<ArenaRange> ShmChannel::written_range() const noexcept {
  if (!has_writer()) return std::nullopt;
  auto range = writer_->written_range();
  if (range && link_.has_peer_ended()) range.reset();
  return range;
}

const Frame* ShmChannel::front() {
  return front_of([this]() -> const Frame* {
    RingReader* const reader = reader_.load(std::memory_order_acquire);
    return reader == nullptr ? nullptr : reader->front();
  });
}

bool ShmChannel::is_intact() const noexcept { return reader_.load(std::memory_order_relaxed)->is_intact(); }

std::byte* ShmChannel::begin_write() noexcept { return reader_.load(std::memory_order_relaxed)->begin_write(); }

void ShmChannel::end_write() noexcept { reader_.load(std::memory_order_relaxed)->end_write(); }

void ShmChannel::pop() {
  reader_.load(std::memory_order_relaxed)->pop();
  ring_peer();
}

void ShmChannel::ring_peer() noexcept {
  if (BellWords* const bell = peer_bell_.load(std::memory_order_acquire)) ring(*bell);
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
  mark_closed();
  reader_.store(nullptr, std::memory_order_release);
  if (reader_owner_ != nullptr) reader_owner_->close();
  ring_peer();
  reader_owner_.reset();
  writer_.reset();
}

}  // namespace atl::transport
