// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/transport/handshake/handshake_stream.h"

namespace atl::transport {

struct UnixListener {
  Fd fd;
  std::string name;
};
struct TcpListener {
  Fd fd;
  std::uint16_t port = 0;
};

/// Opens a non-blocking listener on a random abstract name. Throws Error(kUnavailable).
UnixListener listen_unix();

/// Opens a non-blocking listener on every address of this machine, IPv6 and IPv4, on the first free port of the range
/// (0, 0: any). Throws Error(kUnavailable) naming the range, Error(kInvalidArgument) when its ends are reversed.
TcpListener listen_tcp(std::uint16_t first, std::uint16_t last);

/// Accepts connections from both listeners and authenticates them. At most kMaxIncoming are in that state, each for a
/// bounded time; more wait in the kernel's queue. Strangers are closed and logged. Lives on the loop thread.
class Acceptor : private HandshakeStream::Owner {
 public:
  static constexpr std::size_t kMaxIncoming = 512;

  /// Called on the loop.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// The initiator is genuine: call stream.welcome(), or refuse(stream, ...), now or later.
    virtual void on_incoming_proven(HandshakeStream& stream) = 0;
    /// `rail` is the initiator's HandshakeIdentity::rail.
    virtual void on_incoming(std::uint8_t rail, ByteStream stream, const PeerAddress& authenticated) = 0;
    /// A proven connection ended or is about to be destroyed: forget it.
    virtual void on_incoming_gone(const HandshakeStream& stream) = 0;
  };

  using MakeHandshake = std::function<Handshake(LinkKind kind)>;

  /// `patience` limits how long a connection may wait for this side, and how long its handshake may take.
  Acceptor(Loop& loop, Owner& owner, UnixListener unix_listener, TcpListener tcp_listener,
           std::chrono::milliseconds patience, MakeHandshake make_handshake);

  /// Starts to accept connections. Until allow_handshakes(), they wait without being read.
  void begin();
  void allow_handshakes();
  void refuse(HandshakeStream& stream, Refusal refusal);
  void tick(Clock::time_point now);

  /// Closes the listeners and every unfinished connection.
  void stop();

 private:
  void on_proven(HandshakeStream& stream) override { owner_.on_incoming_proven(stream); }
  void on_done(HandshakeStream& stream) override;
  void on_ended(HandshakeStream& stream, const HandshakeStream::End& end) override;

  void accept_some(LinkKind kind);
  void start(HandshakeStream& stream);
  void drop(HandshakeStream& stream);
  void listen(bool wanted);
  void complain(const std::string& message);

  Loop& loop_;
  Owner& owner_;
  UnixListener unix_;
  TcpListener tcp_;
  const std::chrono::milliseconds patience_;
  const MakeHandshake make_handshake_;
  std::list<std::unique_ptr<HandshakeStream>> streams_;
  bool listening_ = false;
  bool allowed_ = false;
  bool exhausted_ = false;  // descriptors: logged once per time it happens
  std::size_t complaints_ = 0;
};

}  // namespace atl::transport
