// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "atoll/core/copy.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

/// Keeps what this side has sent on a channel as long as it may have to be sent again: a ring as large as the
/// receiver's window, so that a byte is overwritten only after credit for it, which proves its arrival. Guarded by the
/// link's mutex.
class SendStream {
 public:
  /// Opens the stream, once. Throws Error(kUnavailable) when out of memory.
  void open(std::uint32_t number, const OpenBody& body) {
    ring_ = MappedRing::create_private(body.window_bytes);
    number_ = number;
    body_ = body;
  }
  bool is_open() const noexcept { return static_cast<bool>(ring_); }
  /// Frees the memory once nothing of it will be sent again.
  void close() noexcept { ring_ = MappedRing(); }

  std::uint32_t number() const noexcept { return number_; }
  const OpenBody& body() const noexcept { return body_; }

  /// Writes the parts one after the other; together at most the window.
  void write(std::uint64_t position, std::initializer_list<std::span<const std::byte>> parts) noexcept {
    for (const auto part : parts) {
      if (!part.empty()) copy_bytes(ring_.at(position), part.data(), part.size());
      position += part.size();
    }
  }
  std::span<const std::byte> read(std::uint64_t position, std::size_t bytes) const noexcept {
    return {ring_.at(position), bytes};
  }

  /// One bit per rail over which the channel's number was announced to the peer.
  unsigned announced = 0;

 private:
  std::uint32_t number_ = 0;
  OpenBody body_;
  MappedRing ring_;
};

/// Bytes of a channel's stream that travel over one rail as one; also the bytes of a frame that no rail has yet.
struct Segment {
  SendStream* stream = nullptr;  ///< none: a probe
  std::uint64_t position = 0;    ///< in the channel's stream
  std::uint32_t bytes = 0;
  std::uint32_t message_bytes = 0;  ///< on the rail's stream
  std::uint64_t end = 0;            ///< of its message on the rail's stream
  std::uint64_t serial = 0;         ///< frames accepted later have larger ones
  Segment* next = nullptr;
};

/// A queue of segments; owns nothing.
class SegmentList {
 public:
  SegmentList() = default;
  SegmentList(SegmentList&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)), last_(std::exchange(other.last_, nullptr)) {}
  SegmentList& operator=(SegmentList&& other) noexcept {
    first_ = std::exchange(other.first_, nullptr);
    last_ = std::exchange(other.last_, nullptr);
    return *this;
  }

  bool empty() const noexcept { return first_ == nullptr; }
  Segment* front() const noexcept { return first_; }
  const Segment* back() const noexcept { return last_; }
  void push_back(Segment* segment) noexcept {
    segment->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = segment;
    last_ = segment;
  }
  Segment* pop_front() noexcept {
    Segment* const segment = first_;
    first_ = segment->next;
    if (first_ == nullptr) last_ = nullptr;
    return segment;
  }

 private:
  Segment* first_ = nullptr;
  Segment* last_ = nullptr;
};

/// Owns a fixed number of segments.
class SegmentPool {
 public:
  explicit SegmentPool(std::size_t count) : segments_(count), free_count_(count) {
    for (Segment& each : segments_) free_.push_back(&each);
  }
  std::size_t free_count() const noexcept { return free_count_; }
  std::size_t count() const noexcept { return segments_.size(); }

  /// Returns nullptr when all are taken.
  Segment* take(const Segment& like) noexcept {
    if (free_.empty()) return nullptr;
    --free_count_;
    Segment* const segment = free_.pop_front();
    *segment = like;
    return segment;
  }
  void give_back(Segment* segment) noexcept {
    ++free_count_;
    free_.push_back(segment);
  }

 private:
  std::vector<Segment> segments_;
  SegmentList free_;
  std::size_t free_count_;
};

}  // namespace atl::transport::tcp
