// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

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

}  // namespace atl::transport::tcp
