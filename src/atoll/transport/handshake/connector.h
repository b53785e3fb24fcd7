// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/transport/address.h"
#include "atoll/transport/handshake/handshake_stream.h"

namespace atl::transport {

/// Begins the connection to one peer: tries its addresses in order, again and again while the failure may pass, until one
/// connection is authenticated. Lives on the loop thread.
///
///   nobody listens, or the connection ends at once: Unix at once, TCP after a second     -> kPeerLost
///   no route, no answer: until options.connect_timeout                                   -> kPeerLost
///   the connection is taken and nothing is said on it: for answer_patience()             -> kPeerLost
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
    /// One attempt came to nothing. Returns false when the connector was destroyed because there is a better way.
    virtual bool on_attempt_failed(const PeerId& peer) = 0;
  };

  using MakeHandshake = std::function<Handshake(const PeerId& target, LinkKind kind)>;

  Connector(Loop& loop, Owner& owner, const EndpointOptions& options, PeerAddress peer, LinkKind kind,
            MakeHandshake make_handshake);
  ~Connector() override;

  void begin() { try_targets(); }
  void tick(Clock::time_point now);

  /// Our proof has left: the peer may already hold this connection to be the link.
  bool may_be_accepted() const noexcept;

 private:
  struct Target {
    SocketAddress address;
    std::string text;
  };
  /// What became of one round over all addresses; the worst says what to do next.
  enum class Outcome { kNothing, kNoRoute, kNobody, kNoAnswer, kStranger };

  void on_proven(HandshakeStream&) override {}  // initiators are not asked
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
  const Clock::time_point begun_ = Clock::now();
  std::vector<Target> targets_;
  std::size_t next_target_ = 0;
  std::unique_ptr<HandshakeStream> stream_;
  Outcome outcome_ = Outcome::kNothing;
  std::optional<Error> worst_;  // of this round
  std::string last_reason_ = "nothing was tried";
  std::optional<Clock::time_point> first_nobody_;
  std::optional<Loop::TimerId> retry_;
  Clock::time_point last_tick_ = begun_;
  Clock::duration silence_{0};         // of ends that took a connection, over all addresses, until something is heard
  Clock::duration stream_silence_{0};  // of the end of stream_
  std::uint64_t heard_bytes_ = 0;      // on stream_
};

}  // namespace atl::transport
