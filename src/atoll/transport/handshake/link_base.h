// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/loop.h"
#include "atoll/transport/endpoint.h"
#include "atoll/transport/link.h"
#include "atoll/transport/stream/byte_stream.h"

namespace atl::transport {

/// What every link borrows from its endpoint. All of it outlives the link, except that the loop has stopped by the time
/// the link is destroyed.
struct LinkOwner {
  const EndpointOptions& options;
  Loop& loop;
  Doorbell& doorbell;
  LinkObserver& observer;
};

/// How often an endpoint calls tick_on_loop on each of its links: often enough that silence is noticed within the
/// heartbeat plus half a second.
std::chrono::milliseconds tick_interval(const EndpointOptions& options) noexcept;

/// How long a peer that took a connection may say nothing on it, before the link is up and its heartbeats come.
std::chrono::milliseconds answer_patience(const EndpointOptions& options) noexcept;

/// A further connection that a link wants to its peer.
struct WantedRail {
  std::size_t rail = 0;
  std::string from;  ///< numeric address of this machine with any port, "10.0.0.1:4711"; empty: whatever the route says
  std::string to;    ///< "10.0.0.2:4711"
};

/// The part of a link that does not depend on how bytes travel: its state, the peer, and who is told about a failure.
///
///   kConnecting --attach_on_loop, then mark_up_on_loop--> kUp --> kFailed (fail_on_loop) or kClosed (close_on_loop)
///
/// kFailed and kClosed are final. The endpoint connects, authenticates and hands over the stream; the link does the
/// rest.
class LinkBase : public Link {
 public:
  LinkBase(const LinkOwner& owner, PeerAddress peer);

  const PeerId& peer() const noexcept final { return peer_.id; }
  LinkState state() const noexcept final { return state_.load(std::memory_order_acquire); }

  /// "rank 3", or the peer's id while it has no name. For messages.
  const std::string& peer_name() const noexcept { return peer_.name; }
  const PeerAddress& peer_address() const noexcept { return peer_; }

  /// Throws the error that ended the link. Only in state kFailed or kClosed. Any thread.
  [[noreturn]] void throw_error() const;

  /// Any thread: fails the link as fail_on_loop does, soon.
  void fail_later(const Error& error);

  // The rest is called on the loop thread only.

  /// Takes over the connected, authenticated, non-blocking stream, from which no byte behind the handshake was read (it
  /// may carry descriptors). Called once, in state kConnecting. `authenticated` is the peer's address as its own hello
  /// stated it; its id equals peer().
  virtual void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) = 0;

  // Links that use several connections (rails). One side makes them all: it was the initiator of the first.

  /// Called after attach_on_loop and with each tick: a connection to be made now, until there is none. Each is answered by
  /// attach_rail_on_loop or rail_unreachable_on_loop.
  virtual std::optional<WantedRail> next_rail_on_loop(Clock::time_point /*now*/) { return std::nullopt; }
  virtual void rail_unreachable_on_loop(std::size_t /*rail*/, const Error& /*why*/) {}

  /// The other side: whether the peer's connection may become that rail.
  virtual bool takes_rail_on_loop(std::size_t /*rail*/) const { return false; }

  /// As attach_on_loop, for a rail of a link that is up; it takes the place of the one before. Closes `stream` when the
  /// link has no use for it any more.
  virtual void attach_rail_on_loop(std::size_t /*rail*/, ByteStream /*stream*/) {}

  /// Ends the link with `error`, once: later calls do nothing. Rings all bells of this process and tells the observer.
  /// After mark_leaving_on_loop the end of the peer's side is no failure: the link becomes kClosed and the observer is
  /// not told.
  void fail_on_loop(const Error& error, bool closed_in_order = false);

  /// Sends what was accepted, then tells the peer that this end closes in order. The link stays usable for receiving.
  virtual void begin_shutdown_on_loop() = 0;

  /// Whether begin_shutdown_on_loop has nothing left to send (true in a final state).
  virtual bool drained_on_loop() const = 0;

  /// This side's own end of the link (shutdown, abort): final state kClosed, channels throw `why`; the observer is not
  /// told.
  void close_on_loop(const Error& why);

  /// Every tick_interval: fails a link that is not up within connect_timeout, else lets it look at the peer's silence.
  void tick_on_loop(Clock::time_point now);

 protected:
  /// The peer can be talked to: channels start to accept frames, waiters look again.
  void mark_up_on_loop();

  /// Called by begin_shutdown_on_loop of a link that is up: this side says goodbye, and the peer may hang up in return.
  void mark_leaving_on_loop() noexcept { leaving_ = true; }

  /// Heartbeat: sends this side's, fails the link when the peer's stayed away for options.heartbeat.
  virtual void on_tick_on_loop(Clock::time_point now) = 0;

  /// The same while the link is kConnecting, for one that waits for its peer after attach_on_loop.
  virtual void on_connecting_tick_on_loop(Clock::time_point /*now*/) {}

  /// Leaves the loop and closes the stream. Received frames stay readable. Called once, in a final state or while
  /// still connecting (then nothing may be attached yet).
  virtual void teardown_on_loop() noexcept = 0;

  const EndpointOptions& options() const noexcept { return owner_.options; }
  Loop& loop() const noexcept { return owner_.loop; }
  Doorbell& doorbell() const noexcept { return owner_.doorbell; }
  LinkObserver& observer() const noexcept { return owner_.observer; }

 private:
  void finish_on_loop(LinkState state, const Error& error);

  const LinkOwner owner_;
  PeerAddress peer_;
  const Clock::time_point created_ = Clock::now();
  bool leaving_ = false;  // the loop's
  std::atomic<LinkState> state_{LinkState::kConnecting};
  std::unique_ptr<const Error> error_;  // written before the final state is published, then constant
};

}  // namespace atl::transport
