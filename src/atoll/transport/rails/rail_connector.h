// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "atoll/transport/handshake/handshake_stream.h"
#include "atoll/transport/handshake/link_base.h"

namespace atl::transport {

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
  void fail_later(const Error& error);

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
