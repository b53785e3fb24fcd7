// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/loop.h"
#include "atoll/transport/endpoint.h"
#include "atoll/transport/frame.h"
#include "atoll/transport/link.h"
#include "atoll/transport/stream/byte_stream.h"

namespace atl::transport {

/// References that every link borrows from its endpoint. All outlive the link, except that the loop has stopped by the
/// time the link is destroyed.
struct LinkOwner {
  const EndpointOptions& options;
  Loop& loop;
  Doorbell& doorbell;
  LinkObserver& observer;
};

/// Returns the interval at which an endpoint calls tick_on_loop on each of its links, short enough that silence is
/// noticed within the heartbeat plus half a second.
std::chrono::milliseconds tick_interval(const EndpointOptions& options) noexcept;

/// Returns how long a peer that accepted a connection may stay silent before the link is up and its heartbeats begin.
std::chrono::milliseconds answer_patience(const EndpointOptions& options) noexcept;

/// Returns the time that has passed since `last_tick`, which becomes `now`, as far as silence in it counts: time in
/// which this process itself did not run says nothing about the peer.
Clock::duration counted_time(Clock::time_point& last_tick, Clock::time_point now,
                             const EndpointOptions& options) noexcept;

/// Returns "1.5".
std::string one_decimal(double value);

/// The channels that a peer may open before this side requests them.
inline constexpr std::size_t kMaxUnclaimedChannels = 4096;

/// Throws Error(kInvalidArgument) for a control message of more than `limit` bytes.
void check_control(std::span<const std::byte> message, std::size_t limit = kMaxControlBytes);

/// A further connection that a link requests to its peer.
struct WantedRail {
  std::size_t rail = 0;
  std::string from;  ///< numeric address of this machine with any port, "10.0.0.1:4711"; empty: chosen by the route
  std::string to;    ///< "10.0.0.2:4711"
};

/// The part of a link that does not depend on how bytes travel: its state, its peer, and the reporting of failures.
///
///   kConnecting --attach_on_loop, then mark_up_on_loop--> kUp --> kFailed (fail_on_loop) or kClosed (close_on_loop)
///
/// kFailed and kClosed are final. The endpoint connects, authenticates and hands over the stream; the rest is the
/// link's.
class LinkBase : public Link {
 public:
  LinkBase(const LinkOwner& owner, PeerAddress peer);

  const PeerId& peer() const noexcept final { return peer_.id; }
  LinkState state() const noexcept final { return state_.load(std::memory_order_acquire); }

  /// Returns "rank 3", or the peer's id when it has no name. For messages.
  const std::string& peer_name() const noexcept { return peer_.name; }
  const PeerAddress& peer_address() const noexcept { return peer_; }

  /// Throws the error that ended the link. Only in state kFailed or kClosed. Any thread.
  [[noreturn]] void throw_error() const;

  /// Any thread: fails the link as fail_on_loop does, soon.
  void fail_later(const Error& error);

  // The rest is called on the loop thread only.

  /// Takes over the connected, authenticated, non-blocking stream, from which no byte after the handshake was read (it
  /// may carry descriptors). Called once, in state kConnecting. `authenticated` is the peer's address as its own hello
  /// stated it; its id equals peer().
  virtual void attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) = 0;

  // Links that use several connections (rails). One side makes them all: it was the initiator of the first.

  /// Returns a connection to be made now, if any. Called after attach_on_loop and with each tick, until there is none.
  /// Each is answered by attach_rail_on_loop or rail_unreachable_on_loop.
  virtual std::optional<WantedRail> next_rail_on_loop(Clock::time_point /*now*/) { return std::nullopt; }
  virtual void rail_unreachable_on_loop(std::size_t /*rail*/, const Error& /*why*/) {}

  /// On the other side: returns whether the peer's connection may become that rail.
  virtual bool takes_rail_on_loop(std::size_t /*rail*/) const { return false; }

  /// As attach_on_loop, for a rail of a link that is up; it replaces the previous one. Closes `stream` when the link
  /// does not need it any more.
  virtual void attach_rail_on_loop(std::size_t /*rail*/, ByteStream /*stream*/) {}

  /// Ends the link with `error`, once: later calls do nothing. Rings all bells of this process and notifies the
  /// observer. After mark_leaving_on_loop the end of the peer's side is not a failure: the link becomes kClosed and the
  /// observer is not notified.
  void fail_on_loop(const Error& error, bool closed_in_order = false);

  /// Sends what was accepted, then tells the peer that this end closes in good order. The link can still receive.
  virtual void begin_shutdown_on_loop() = 0;

  /// Returns whether begin_shutdown_on_loop has nothing left to send (true in a final state).
  virtual bool drained_on_loop() const = 0;

  /// Ends the link from this side (shutdown, abort): the final state is kClosed and channels throw `why`; the observer
  /// is not notified.
  void close_on_loop(const Error& why);

  /// Called every tick_interval: fails a link that is not up within connect_timeout, else lets it check the peer's
  /// silence.
  void tick_on_loop(Clock::time_point now);

 protected:
  /// Marks the link as up: channels start to accept frames, and waiters re-check.
  void mark_up_on_loop();

  /// Called by begin_shutdown_on_loop of a link that is up: after this side's goodbye the peer may close the
  /// connection.
  void mark_leaving_on_loop() noexcept { leaving_ = true; }

  /// Sends this side's heartbeat, and fails the link when the peer's did not arrive for options.heartbeat.
  virtual void on_tick_on_loop(Clock::time_point now) = 0;

  /// The same while the link is kConnecting, for links that wait for the peer after attach_on_loop.
  virtual void on_connecting_tick_on_loop(Clock::time_point /*now*/) {}

  /// Leaves the loop and closes the stream. Received frames stay readable. Called once, in a final state or while
  /// still connecting (then nothing may be attached yet).
  virtual void teardown_on_loop() noexcept = 0;

  /// Notes that threads that wait for this bell can continue; ring_noted_on_loop() wakes them.
  void note_bell_on_loop(Bell bell) noexcept { noted_bells_[static_cast<std::size_t>(bell)] = true; }
  void ring_noted_on_loop() noexcept;

  /// Returns how long a peer that states this heartbeat may be silent. One that is slower than this side expects is not
  /// lost.
  std::chrono::milliseconds patience_for(std::uint64_t heartbeat_ms) const noexcept;

  /// Throws Error(kInvalidArgument): a closed channel is requested.
  [[noreturn]] void refuse_reopening() const;

  /// Names the peer in messages, and the path to it as far as that helps.
  virtual std::string label() const { return peer_name(); }
  Error named(const Error& error) const { return {error.kind(), label() + ": " + error.what()}; }
  Error lost(const std::string& how) const { return {ErrorKind::kPeerLost, label() + " " + how}; }

  /// Runs `step`; an exception ends the link.
  template <class Step>
  void guarded_on_loop(const Step& step) {
    try {
      step();
    } catch (const Error& error) {
      fail_on_loop(named(error));
    } catch (const std::exception& error) {
      fail_on_loop(named(Error(ErrorKind::kInternal, error.what())));
    }
  }

  const EndpointOptions& options() const noexcept { return owner_.options; }
  Loop& loop() const noexcept { return owner_.loop; }
  Doorbell& doorbell() const noexcept { return owner_.doorbell; }
  LinkObserver& observer() const noexcept { return owner_.observer; }

 private:
  void finish_on_loop(LinkState state, const Error& error);

  const LinkOwner owner_;
  PeerAddress peer_;
  const Clock::time_point created_ = Clock::now();
  bool leaving_ = false;  // the loop's, like the next
  std::array<bool, kBellCount> noted_bells_{};
  std::atomic<LinkState> state_{LinkState::kConnecting};
  std::unique_ptr<const Error> error_;  // written before the final state is published, then constant
};

/// The part of a channel that does not depend on how frames travel: its window, whether it is closed, and the errors of
/// calls. The functions that are not Channel's are for the link.
class ChannelBase : public Channel {
 public:
  ChannelBase(LinkBase& link, const ChannelId& id, std::size_t window_bytes)
      : window_bytes_(window_bytes), link_base_(link), id_(id), max_payload_(max_payload_of(window_bytes)) {}

  std::size_t max_payload() const noexcept final { return max_payload_; }
  std::size_t window_bytes() const noexcept final { return window_bytes_; }
  const ChannelId& id() const noexcept { return id_; }

  /// Marks the channel as requested by this side, not only opened by the peer. With the link's mutex of channels, like
  /// is_claimed.
  void claim() noexcept { is_claimed_ = true; }
  bool is_claimed() const noexcept { return is_claimed_; }

  /// From here on the calls of this side's threads throw Error(kAborted).
  void mark_closed() noexcept { is_closed_.store(true, std::memory_order_release); }
  bool is_closed() const noexcept { return is_closed_.load(std::memory_order_acquire); }

 protected:
  /// The beginning of try_send: returns whether the link is up, false while it connects. Throws the link's error,
  /// Error(kInvalidArgument) for a frame that the channel does not take, Error(kAborted) once it is closed.
  bool may_send(const FrameHeader& header, std::span<const std::byte> payload) const {
    if (link_base_.state() != LinkState::kUp) return wait_or_throw();
    if (payload.size() > max_payload_ || header.payload_bytes != payload.size()) refuse(header, payload.size());
    if (is_closed()) throw_closed("to");
    return true;
  }

  /// All of front(): returns the frame that `look` finds, else nullptr while the link may bring one. `look` returns the
  /// oldest frame or nullptr, and may throw what the peer has done wrong.
  template <class Look>
  const Frame* front_of(const Look& look) {
    if (is_closed()) throw_closed("from");
    if (const Frame* const frame = guarded(look)) return frame;
    const LinkState state = link_base_.state();
    if (state == LinkState::kConnecting || state == LinkState::kUp) return nullptr;
    // The link has ended: everything that arrived is visible now.
    if (const Frame* const frame = guarded(look)) return frame;
    link_base_.throw_error();
  }

  /// Runs `step`; an error of it fails the link, and is thrown with the peer's name.
  template <class Step>
  auto guarded(const Step& step) {
    try {
      return step();
    } catch (const Error& error) {
      fail(error);
    }
  }

  std::size_t window_bytes_;  // constant once the sender uses it

 private:
  bool wait_or_throw() const;
  [[noreturn]] void refuse(const FrameHeader& header, std::size_t payload_bytes) const;
  [[noreturn]] void throw_closed(const char* direction) const;
  [[noreturn]] void fail(const Error& error);

  LinkBase& link_base_;
  const ChannelId id_;
  const std::size_t max_payload_;
  std::atomic<bool> is_closed_{false};
  bool is_claimed_ = false;
};

}  // namespace atl::transport
