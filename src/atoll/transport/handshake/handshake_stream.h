// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/loop.h"
#include "atoll/transport/handshake/handshake.h"
#include "atoll/transport/stream/byte_stream.h"

namespace atl::transport {

/// One connection while it is being made: a non-blocking stream and the handshake that runs over it, inside TLS if the
/// handshake has credentials. Lives on the loop thread. Reads exactly the handshake's bytes, so that the stream can be
/// handed to a link afterwards.
class HandshakeStream {
 public:
  /// The end of a connection that did not become a link.
  struct End {
    Error error;
    int error_number = 0;  ///< of the system call, or 0
    bool end_of_file = false;
    Refusal refusal = Refusal::kNone;
  };

  /// Called on the loop. The stream may be destroyed inside any of these; it does not touch itself afterwards.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Acceptor only: the initiator is genuine. Call welcome() or refuse(), now or later.
    virtual void on_proven(HandshakeStream& /*stream*/) {}
    /// Both ends are genuine: take_stream() is for a link.
    virtual void on_done(HandshakeStream& stream) = 0;
    virtual void on_ended(HandshakeStream& stream, const End& end) = 0;
  };

  /// Takes a connected stream, or one whose connect() is in progress. Does nothing before begin().
  HandshakeStream(Loop& loop, Owner& owner, Fd fd, std::string remote, LinkKind kind);
  ~HandshakeStream();

  /// Starts the handshake; the owner is called from the loop, never from inside begin(). Throws Error(kUnavailable).
  void begin(Handshake handshake, bool connecting);
  bool has_started() const noexcept { return handshake_.has_value(); }

  void welcome();
  /// Sends the initiator the reason, as far as that is possible without waiting. The owner destroys the stream next.
  void refuse(Refusal refusal);

  Handshake::State state() const noexcept { return handshake_ ? handshake_->state() : Handshake::State::kAwaitHello; }
  const PeerAddress& peer() const noexcept { return handshake_->peer(); }
  std::uint8_t rail() const noexcept { return handshake_->rail(); }
  const std::string& remote() const noexcept { return remote_; }  ///< "10.0.0.2:4712", for messages
  LinkKind kind() const noexcept { return kind_; }
  Clock::time_point since() const noexcept { return since_; }  ///< made, or started
  bool is_connecting() const noexcept { return connecting_; }  ///< the other end has not accepted the connection yet
  std::uint64_t heard_bytes() const noexcept { return heard_bytes_; }
  ByteStream take_stream();

 private:
  void on_event(std::uint32_t events);
  bool finish_connect();  // false: the owner was notified
  bool open_tls();        // false: it is not complete, or the owner was notified
  void read_some();
  bool flush();  // false: the owner was notified
  void farewell() noexcept;
  void watch(bool for_room);
  void end(const End& end);

  Loop& loop_;
  Owner& owner_;
  ByteStream stream_;
  const std::string remote_;
  const LinkKind kind_;
  Clock::time_point since_ = Clock::now();
  std::optional<Handshake> handshake_;
  bool connecting_ = false;
  bool is_open_ = false;  // handshake bytes may pass: in clear at once, else when TLS is open
  std::uint64_t heard_bytes_ = 0;
  bool watched_ = false;
  std::uint32_t events_ = 0;
  std::vector<std::byte> output_;
};

}  // namespace atl::transport
