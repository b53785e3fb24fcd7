// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/send_ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "atoll/core/copy.h"
#include "atoll/core/error.h"
#include "atoll/transport/plain_bytes.h"

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
  if (total > taken_) {
    throw Error(ErrorKind::kProtocol, "credit for " + std::to_string(total) + " bytes, of which only " +
                                          std::to_string(taken_) + " were sent");
  }
  released_.store(std::max(total, released_.load(std::memory_order_relaxed)), std::memory_order_release);
}

}  // namespace atl::transport::ucx
