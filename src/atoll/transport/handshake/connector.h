// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/transport/address.h"
#include "atoll/transport/handshake/handshake_stream.h"
#include "atoll/transport/handshake/link_base.h"

namespace atl::transport {

/// Opens the connection to one peer: tries its addresses in order, repeatedly while the failure may be temporary, until
/// one connection is authenticated. Lives on the loop thread.
///
///   no listener, or the connection ends at once: Unix at once, TCP after a second        -> kPeerLost
///   no route or no answer: after options.connect_timeout                                 -> kPeerLost
///   the connection is accepted but nothing is received: after answer_patience()          -> kPeerLost
///   the other end is a stranger at every address                                         -> kRefused or kProtocol
class Connector : private HandshakeStream::Owner {
 public:
  /// Called on the loop. The connector may be destroyed inside any of these; it does not touch itself afterwards.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_connected(const PeerId& peer, ByteStream stream, const PeerAddress& authenticated) = 0;
    virtual void on_connect_failed(const PeerId& peer, const Error& error) = 0;
    /// The peer's own connection to us is under way and wins.
    virtual void on_yielded(const PeerId& peer) = 0;
    /// One attempt failed. Returns false if the connector was destroyed because another connection is used instead.
    virtual bool on_attempt_failed(const PeerId& peer) = 0;
  };

  using MakeHandshake = std::function<Handshake(const PeerId& target, LinkKind kind)>;

  Connector(Loop& loop, Owner& owner, const EndpointOptions& options, PeerAddress peer, LinkKind kind,
            MakeHandshake make_handshake);
  ~Connector() override;

  void begin() { try_targets(); }
  void tick(Clock::time_point now);

  /// Returns whether our proof has left, so that the peer may already have accepted this connection as the link.
  bool may_be_accepted() const noexcept;

 private:
  struct Target {
    SocketAddress address;
    std::string text;
  };
  /// The outcome of one round over all addresses; the worst one decides what to do next.
  enum class Outcome { kNothing, kNoRoute, kNotListening, kNoAnswer, kStranger };

  void on_done(HandshakeStream& stream) override;
  void on_ended(HandshakeStream& stream, const HandshakeStream::End& end) override;

  void collect_targets();
  void try_targets();
  bool try_one(const Target& target);  // false: failed at once, and noted
  void note(Outcome outcome, const Error& error);
  void end_round();
  void note_silence(Clock::time_point now);
  void give_up_attempt(bool last);
  void fail(const Error& error);  // not a member: the owner may destroy this connector
  std::string describe() const;

  Loop& loop_;
  Owner& owner_;
  const EndpointOptions& options_;
  const PeerAddress peer_;
  const LinkKind kind_;
  const MakeHandshake make_handshake_;
  const Clock::time_point started_ = Clock::now();
  std::vector<Target> targets_;
  std::size_t next_target_ = 0;
  std::unique_ptr<HandshakeStream> stream_;
  Outcome outcome_ = Outcome::kNothing;
  std::optional<Error> worst_;  // of this round
  std::string last_reason_ = "nothing was tried";
  std::optional<Clock::time_point> first_not_listening_;
  std::optional<Loop::TimerId> retry_;
  Clock::time_point last_tick_ = started_;
  Clock::duration silence_{0};         // since bytes came from any address that accepted a connection
  Clock::duration stream_silence_{0};  // since bytes came on stream_
  std::uint64_t heard_bytes_ = 0;      // on stream_
};

/// One attempt to connect a further rail of a link that is up: from one address to one address, with the same mutual
/// challenge as the first. Lives on the loop thread.
class RailConnector : private HandshakeStream::Owner {
 public:
  /// One of these is called, once, on the loop and never from inside begin(). The connector may be destroyed inside; it
  /// does not touch itself afterwards.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_rail_connected(const RailConnector& connector, ByteStream stream) = 0;
    virtual void on_rail_failed(const RailConnector& connector, const Error& error) = 0;
  };

  RailConnector(Loop& loop, Owner& owner, const EndpointOptions& options, const PeerAddress& peer, WantedRail wanted);
  ~RailConnector() override;

  void begin(const std::function<Handshake()>& make_handshake);

  /// Gives up an attempt that takes longer than three seconds, or the heartbeat.
  void tick(Clock::time_point now);

  const PeerId& peer() const noexcept { return peer_; }
  std::size_t rail() const noexcept { return wanted_.rail; }

 private:
  void on_done(HandshakeStream& stream) override;
  void on_ended(HandshakeStream& stream, const HandshakeStream::End& end) override;

  Fd connect(bool* connecting) const;

  Loop& loop_;
  Owner& owner_;
  const EndpointOptions& options_;
  const PeerId peer_;
  const WantedRail wanted_;
  const Clock::time_point started_ = Clock::now();
  std::unique_ptr<HandshakeStream> stream_;
  std::optional<Loop::TimerId> failure_;
};

}  // namespace atl::transport
