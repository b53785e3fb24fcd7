// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/transport/link.h"

// The messages between the two ends of a shared-memory link, in host byte order, and the Unix stream that carries them.
namespace atl::transport::shm {

enum class MessageType : std::uint8_t {
  kHello = 1,    ///< first message; carries the sender's doorbell memory
  kOpen = 2,     ///< a channel's ring towards the receiver; carries its memory
  kControl = 3,  ///< Link::send_control
  kBye = 4,      ///< the sender closes in good order
  kSlab = 5,     ///< a slab of the sender's arena; carries its memory
};

struct MessageHeader {
  std::uint32_t magic = kMagic;
  MessageType type = MessageType::kBye;
  std::uint8_t zero[3] = {0, 0, 0};
  std::uint32_t body_bytes = 0;

  static constexpr std::uint32_t kMagic = 0x53'4c'54'41;  // "ATLS"
};
static_assert(sizeof(MessageHeader) == 12);

struct Hello {
  std::uint64_t heartbeat_ms = 0;  ///< the sender accepts to be taken for dead after this silence
};

struct Open {
  std::uint64_t group = 0;
  std::uint32_t index = 0;
  std::uint32_t bell = 0;
  std::uint64_t window_bytes = 0;
};

struct Slab {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
};

struct Message {
  MessageType type;
  std::span<const std::byte> body;  ///< valid until the next MessageParser::space()
};

/// Returns the header followed by `body`, ready to be sent.
std::vector<std::byte> encode(MessageType type, std::span<const std::byte> body);

/// Reads the body of a message, without checking its values. Throws Error(kProtocol) when its size is wrong.
template <class Body>
Body decode(const Message& message) {
  if (message.body.size() != sizeof(Body)) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: message of type ", static_cast<int>(message.type), " has ",
                message.body.size(), " bytes");
  }
  return read_as<Body>(message.body);
}

/// Cuts received bytes into messages; holds at most one incomplete message. Throws Error(kProtocol) on anything else.
class MessageParser {
 public:
  MessageParser();

  /// Returns the space to receive into; never empty after next() returned nothing.
  std::span<std::byte> space();
  void add(std::size_t bytes) { end_ += bytes; }

  std::optional<Message> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

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
