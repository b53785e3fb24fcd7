// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <span>

#include "atoll/core/fd.h"
#include "atoll/infer/link/frame_sender.h"
#include "atoll/infer/link/payload_ring.h"

namespace atl::infer {

/// Writes whole frames to a blocking stream socket, in the caller's thread. Frames are dropped once the socket is
/// closed.
class SocketSender : public FrameSender {
 public:
  /// Borrows the socket. Payloads for which `lent` has room are put there (null: none).
  explicit SocketSender(int socket, PayloadWriter* lent = nullptr) noexcept : socket_(socket), lent_(lent) {}
  void send(const wire::Message& message) override;
  void send(const wire::FrameHeader& header, HostBytes payload) override;

 private:
  void write(std::span<const std::byte> head, std::span<const std::byte> payload);

  std::mutex mutex_;  // guards everything below
  int socket_;
  PayloadWriter* const lent_;
  bool is_gone_ = false;
};

}  // namespace atl::infer
