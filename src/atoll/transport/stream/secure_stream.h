// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/core/loop.h"
#include "atoll/transport/stream/credentials.h"

// TLS 1.3 (RFC 8446) over TCP, for every stream that strangers must neither read nor change.
namespace atl::transport {

/// Bytes to be sent, and the owner that keeps them alive.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// One TLS connection over a connected, non-blocking TCP socket. All on the loop thread. Early data, renegotiation,
/// resumption and compression are off, so nothing can be replayed.
class SecureStream {
 public:
  /// Called on the loop, never from inside a call to the stream, and must not throw. The stream may be destroyed inside
  /// any of these; it does not touch itself afterwards.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// The other end is genuine. With certificates a client's stream opens before the server has judged its
    /// certificate: a refusal then follows as on_closed.
    virtual void on_open(SecureStream& stream) = 0;
    virtual void on_bytes(SecureStream& stream, std::span<const std::byte> bytes) = 0;
    /// The queue was not empty, and the system has taken all of it now.
    virtual void on_drained(SecureStream& stream) = 0;
    /// The last call, made once: kRefused (the other end has no key, another one, or no valid certificate), kProtocol
    /// (not TLS), kPeerLost (reset, silence, end without notice), kTimeout (the handshake, or bytes that were not taken
    /// while closing), or no error: the stream closed in good order.
    virtual void on_closed(SecureStream& stream, const std::optional<Error>& error) = 0;
  };

  using Role = TlsRole;
  struct Options {
    std::chrono::milliseconds handshake_timeout{5000};
    /// The system gives up the connection when for this long (to the second) the other end's system has acknowledged
    /// nothing, or its program has taken nothing of what waits for it; 0: the system's own limits, many minutes. Hence
    /// a pause of one end, while the other sends, must be shorter than the other's `silence`.
    std::chrono::milliseconds silence{10000};
    /// Limits the bytes that the system holds and has not put on the network; 0: its default. A small limit shortens
    /// the wait of what is sent next.
    std::size_t socket_send_bytes = 0;
    std::string name{};  ///< of the other end, for messages: "10.0.0.2:4711"
    std::string host{};  ///< whose certificate a client accepts
  };

  /// Throws Error(kInvalidArgument) for a client with certificates but without a host, kUnavailable for lack of memory
  /// or descriptors.
  SecureStream(Loop& loop, Owner& owner, Fd socket, Role role, std::shared_ptr<const Credentials> credentials,
               Options options);
  /// Ends the connection without a goodbye unless it has closed.
  ~SecureStream();
  SecureStream(const SecureStream&) = delete;
  SecureStream& operator=(const SecureStream&) = delete;

  /// Queues bytes, before or after the stream is open. Nothing is copied beyond what encryption copies anyway. A stream
  /// that has closed, or is closing, drops them.
  void send_on_loop(Piece piece);
  /// The bytes given to send_on_loop that the system has not taken yet.
  std::size_t queued_bytes() const noexcept;
  /// Sends what is queued and a goodbye, then closes. on_closed follows, after `linger` at the latest, and no other
  /// call. Further bytes from the other end are dropped.
  void close_on_loop(std::chrono::milliseconds linger);
  /// Stops reading until resume_on_loop, so that the other end's bytes wait there. For a receiver that cannot keep up.
  /// A connection that breaks during the pause is reported at once.
  void pause_on_loop();
  void resume_on_loop();

  const std::string& name() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // lives through a call to the owner that destroys the stream
};

}  // namespace atl::transport
