// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/core/loop.h"

// TLS 1.3 (RFC 8446) over TCP: the one implementation, for whoever needs a stream that strangers can neither read nor change.
namespace atl::transport {

/// How both ends know each other: a shared key, or certificates. Made once, used for any number of streams and threads.
class Credentials {
 public:
  /// A key that both ends hold (at least 16 bytes), as external PSK with ephemeral Diffie-Hellman. Error(kInvalidArgument) for a
  /// shorter one.
  static std::shared_ptr<const Credentials> of_key(std::span<const std::byte> key);
  /// Reads such a key from a file: its bytes without a line's end. Error(kUnavailable) where it cannot be read,
  /// kInvalidArgument where others than its owner may read it, or it is too short.
  static std::shared_ptr<const Credentials> of_key_file(const std::string& path);
  /// PEM files: the own chain and key, and the authorities that the other end's certificate must come from. Both ends show one. A
  /// client also checks that the server's is for the host name that it connected to.
  static std::shared_ptr<const Credentials> of_certificates(const std::string& chain_file, const std::string& key_file,
                                                            const std::string& authorities_file);

  struct State;
  explicit Credentials(std::unique_ptr<State> state);
  ~Credentials();
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Bytes to be sent, and what keeps them.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// One TLS connection over a connected, non-blocking TCP socket. All on the loop thread. Early data, renegotiation, resumption
/// and compression are off, so nothing can be replayed.
class SecureStream {
 public:
  /// Called on the loop. The stream may be destroyed inside any of these; it does not touch itself afterwards.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_open(SecureStream& stream) = 0;
    virtual void on_bytes(SecureStream& stream, std::span<const std::byte> bytes) = 0;
    /// The queue was not empty, and now all of it is with the system.
    virtual void on_drained(SecureStream& stream) = 0;
    /// Once, and the last call: kRefused (the other end has no key, another one, or no valid certificate), kProtocol (no TLS),
    /// kPeerLost (reset, silence, end without notice), kTimeout (the handshake), or none: it closed in order.
    virtual void on_closed(SecureStream& stream, const std::optional<Error>& error) = 0;
  };

  enum class Role { kClient, kServer };
  struct Options {
    std::chrono::milliseconds handshake_timeout{5000};
    std::size_t socket_send_bytes = 0;  ///< of the system's send queue; 0: its default. Small: what is sent first waits little
    std::string name;                   ///< of the other end, for messages: "10.0.0.2:4711"
    std::string host;                   ///< whose certificate a client accepts
  };

  SecureStream(Loop& loop, Owner& owner, Fd socket, Role role, std::shared_ptr<const Credentials> credentials,
               Options options);
  ~SecureStream();
  SecureStream(const SecureStream&) = delete;
  SecureStream& operator=(const SecureStream&) = delete;

  /// Puts bytes behind what is queued, before or after the stream is open. Nothing is copied but what encryption copies anyway. A
  /// stream that has closed drops them.
  void send_on_loop(Piece piece);
  /// Bytes that were given to send_on_loop and are not with the system yet.
  std::size_t queued_bytes() const noexcept;
  /// Sends what is queued, says goodbye, closes; on_closed follows, after `linger` at the latest.
  void close_on_loop(std::chrono::milliseconds linger);
  /// Reads no more until resume: what the other end sends waits there. For a receiver that cannot keep up.
  void pause_on_loop();
  void resume_on_loop();

  const std::string& name() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Accepts TCP connections on one address.
class StreamListener {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    /// On the loop. `peer` is the other end's address, for messages.
    virtual void on_connection(Fd socket, const std::string& peer) = 0;
  };
  /// Listens on `host` ("127.0.0.1", "::1", "0.0.0.0", a name) and `port` (0: any). On the loop thread. Error(kUnavailable) that
  /// names the address and what is the obstacle. Running out of descriptors pauses it for a moment.
  StreamListener(Loop& loop, Owner& owner, const std::string& host, std::uint16_t port);
  ~StreamListener();
  std::uint16_t port() const noexcept;
  /// "127.0.0.1:4711"
  std::string address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Connects a non-blocking socket, with TCP_NODELAY. Any thread but a loop's; waits. Error(kUnavailable) for a name that is not
/// known, kPeerLost where nobody listens, kTimeout.
Fd connect_tcp(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

/// "host:port", "[::1]:4711" in parts. Error(kInvalidArgument) that says what is expected.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
HostPort parse_host_port(const std::string& text);

}  // namespace atl::transport
