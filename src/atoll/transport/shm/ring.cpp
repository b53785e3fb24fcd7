// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/ring.h"

#include <cstring>
#include <new>
#include <string>

#include "atoll/core/error.h"

namespace atl::transport {
namespace {

std::size_t checked_window(std::size_t bytes) {
  if (is_valid_window(bytes)) return bytes;
  throw Error(ErrorKind::kInvalidArgument, "a window of " + std::to_string(bytes) +
                                               " bytes is not a power of two from " + std::to_string(kMinWindowBytes) +
                                               " to " + std::to_string(kMaxWindowBytes));
}

[[noreturn]] void inconsistent(const char* what, std::uint64_t seen, std::uint64_t own) {
  throw Error(ErrorKind::kProtocol, std::string("shared-memory ring: the peer's ") + what + " is " +
                                        std::to_string(seen) + " while this end is at " + std::to_string(own));
}

}  // namespace

RingWriter::RingWriter(std::size_t window_bytes)
    : ring_(MappedRing::create(sizeof(RingControl), checked_window(window_bytes))), copy_(window_bytes) {
  new (ring_.control()) RingControl;
}

bool RingWriter::has_room(std::size_t bytes) {
  if (head_ + bytes - known_tail_ <= ring_.data_bytes()) return true;
  const std::uint64_t tail = control().tail.load(std::memory_order_acquire);
  if (tail < known_tail_ || tail > head_) inconsistent("released position", tail, head_);
  known_tail_ = tail;
  return head_ + bytes - tail <= ring_.data_bytes();
}

bool RingWriter::try_write(const FrameHeader& header, std::span<const std::byte> payload) {
  const std::size_t bytes = footprint(payload.size());
  if (!has_room(bytes)) return control().reader_closed.load(std::memory_order_relaxed) != 0;
  std::byte* const at = ring_.at(head_);
  std::memcpy(at, &header, sizeof(FrameHeader));
  copy_(at + sizeof(FrameHeader), payload.data(), payload.size());
  head_ += bytes;
  control().head.store(head_, std::memory_order_release);
  return true;
}

RingReader::RingReader(const Fd& memory, std::size_t window_bytes)
    : ring_(MappedRing::map(memory, sizeof(RingControl), window_bytes, MappedRing::Access::kReadOnlyData)) {}

const Frame* RingReader::look() {
  if (known_head_ == tail_) {
    const std::uint64_t head = control().head.load(std::memory_order_acquire);
    if (head == tail_) return nullptr;
    if (head < tail_ || head - tail_ > ring_.data_bytes() || head % sizeof(FrameHeader) != 0)
      inconsistent("written position", head, tail_);
    known_head_ = head;
  }
  read_frame(ring_.at(tail_), frame_);
  const std::size_t payload_bytes = frame_.payload.size();
  if (payload_bytes > max_payload_of(ring_.data_bytes()) || footprint(payload_bytes) > known_head_ - tail_) {
    inconsistent("frame length", payload_bytes, tail_);
  }
  has_frame_ = true;
  return &frame_;
}

void RingReader::pop() noexcept {
  tail_ += footprint(frame_.payload.size());
  has_frame_ = false;
  control().tail.store(tail_, std::memory_order_release);
}

void RingReader::close() noexcept { control().reader_closed.store(1, std::memory_order_relaxed); }

}  // namespace atl::transport
