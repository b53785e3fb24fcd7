// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/shm/wire.h"

namespace atl::transport::shm {

/// The Unix stream of a link: messages with descriptors, queued until the socket takes them. Non-blocking. The sending
/// and the receiving half may be used by different threads; each half is for one thread at a time.
class Stream {
 public:
  Stream() = default;
  explicit Stream(Fd socket) : socket_(std::move(socket)) {}

  int descriptor() const noexcept { return socket_.get(); }

  /// Closes the socket and forgets what was queued; messages already received stay valid.
  void close() noexcept;

  /// Appends a message; `memory` is a descriptor that goes with it (or an empty Fd).
  void queue(MessageType type, std::span<const std::byte> body, Fd memory = {});

  /// Sends what the socket takes. A broken connection swallows everything: the receiving half reports it.
  void flush();
  std::size_t queued() const noexcept { return outbox_.size(); }

  /// True when flush() stopped at a full socket; otherwise the queue waits for a system resource, and flush() must be
  /// tried again later.
  bool socket_is_full() const noexcept { return socket_is_full_; }

  enum class Received { kBytes, kNothing, kEnd };

  /// Reads once. kEnd: the peer's end is closed. Throws Error(kProtocol, kUnavailable).
  Received receive();

  /// Returns the next complete message of what was received.
  std::optional<Message> next() { return parser_.next(); }

  /// Returns the descriptor that came with the last message. Throws Error(kProtocol) if there is none.
  Fd take_memory();

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    Fd memory;
    std::size_t sent = 0;
  };
  bool send_some(Outgoing& message);

  Fd socket_;
  std::deque<Outgoing> outbox_;
  bool socket_is_full_ = false;
  MessageParser parser_;
  std::vector<Fd> received_memory_;
};

}  // namespace atl::transport::shm
