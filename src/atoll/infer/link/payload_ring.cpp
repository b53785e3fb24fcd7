// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/payload_ring.h"

#include <atomic>
#include <cstring>
#include <new>
#include <string>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

constexpr std::size_t kAlignment = 64;  // of payloads

struct Control {
  std::atomic<std::uint64_t> tail{0};  // payloads before it are released; written by the reader
};

Control& control_of(const transport::MappedRing& ring) { return *reinterpret_cast<Control*>(ring.control()); }

std::uint64_t footprint(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

PayloadWriter::PayloadWriter() : ring_(transport::MappedRing::create(sizeof(Control), kPayloadRingBytes)) {
  memory_ = ring_.take_memory();
  new (ring_.control()) Control;
}

PayloadWriter::PayloadWriter(const Fd& memory, std::uint64_t head)
    : ring_(transport::MappedRing::map(memory, sizeof(Control), kPayloadRingBytes,
                                       transport::MappedRing::Access::kReadWrite)),
      head_(head),
      known_tail_(head - std::min<std::uint64_t>(head, kPayloadRingBytes)) {}

bool PayloadWriter::has_room(std::size_t bytes) {
  if (is_broken_ || bytes < kMinLentBytes || bytes > wire::kMaxDataBytes) return false;
  const std::uint64_t needed = footprint(bytes);
  if (head_ + needed - known_tail_ > kPayloadRingBytes) {
    const std::uint64_t tail = control_of(ring_).tail.load(std::memory_order_acquire);
    is_broken_ = tail < known_tail_ || tail > head_;
    if (is_broken_) return false;
    known_tail_ = tail;
  }
  return head_ + needed - known_tail_ <= kPayloadRingBytes;
}

std::optional<wire::LentPayload> PayloadWriter::put(std::span<const std::byte> payload) {
  if (!has_room(payload.size())) return std::nullopt;
  std::memcpy(ring_.at(head_), payload.data(), payload.size());
  return commit({ring_.at(head_), payload.size()});
}

std::span<std::byte> PayloadWriter::reserve(std::size_t bytes) {
  if (!has_room(bytes)) return {};
  return {ring_.at(head_), bytes};
}

wire::LentPayload PayloadWriter::commit(std::span<const std::byte> payload) {
  const wire::LentPayload lent{head_, static_cast<std::uint32_t>(payload.size())};
  head_ += footprint(payload.size());
  return lent;
}

PayloadReader::PayloadReader(const Fd& memory)
    : ring_(transport::MappedRing::map(memory, sizeof(Control), kPayloadRingBytes,
                                       transport::MappedRing::Access::kReadOnlyData)) {}

std::span<const std::byte> PayloadReader::at(const wire::LentPayload& lent) const {
  if (lent.bytes > wire::kMaxDataBytes) {
    throw Error(ErrorKind::kProtocol, "the other side lent a payload of " + std::to_string(lent.bytes) +
                                          " bytes; at most " + std::to_string(wire::kMaxDataBytes) + " are allowed");
  }
  return {ring_.at(lent.position), lent.bytes};
}

// Another reader of the same memory may have released more.
void PayloadReader::release(const wire::LentPayload& lent) noexcept {
  std::atomic<std::uint64_t>& tail = control_of(ring_).tail;
  const std::uint64_t end = lent.position + footprint(lent.bytes);
  std::uint64_t seen = tail.load(std::memory_order_relaxed);
  while (seen < end && !tail.compare_exchange_weak(seen, end, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace atl::infer
