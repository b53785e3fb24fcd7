// SPDX-License-Identifier: Apache-2.0
//
// The promises of links, each proven by the tests that docs/promises.md names:
// T-1: A channel's frames arrive whole, unchanged, once and in order, also when a rail fails; otherwise the channel
//   fails.
// T-2: A full channel delays neither another channel nor a control message.
// T-3: A sender is never more than one window ahead of its receiver; a peer that exceeds its credit fails the link.
// T-4: Frames that arrived before a link failed can still be read; after them, every call throws the link's error.
// T-5: The death of a peer's process fails its links within 2 s, even if a child that it has forked lives on.
// T-6: A peer that falls silent, or whose path does, fails its link within the heartbeat plus 1 s.
// T-7: A process with another key, job or attempt gets no link, and a recorded handshake cannot be replayed.
// T-8: Inside TLS nothing that ranks send can be read on the network, and a changed byte is an error that names the
//   peer.
// T-9: A killed process leaves no file, no shared memory and no socket behind.
// T-10: Any bytes that a peer sends or writes are understood, or are a protocol error.
// T-11: A peer recognises what the owner of an arena has revoked before it uses it, and writes only what is lent for
//   that and not revoked: a peer that was stopped while it wrote cannot change memory that is used again.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/arena.h"
#include "atoll/transport/direct.h"
#include "atoll/transport/doorbell.h"
#include "atoll/transport/frame.h"

namespace atl::transport {

/// The random name of one process's endpoint (one rank), unique across jobs and restarts.
struct PeerId {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const PeerId&) const = default;
};
std::string to_string(const PeerId& id);  ///< 32 hexadecimal digits

/// A channel is one ordered flow between two processes: a group's contributions, its results, or its messages.
struct ChannelId {
  std::uint64_t group = 0;        ///< agreed by the group's members
  std::uint32_t index = 0;        ///< see collectives/group/group.h
  Bell bell = Bell::kCollective;  ///< the waiters that its traffic wakes; the same at both ends
  auto operator<=>(const ChannelId&) const = default;
};

/// One ordered, bounded flow of frames in each direction between this process and one peer.
///
/// A sender may put at most window_bytes() of frames (header and payload, each padded to 64 bytes) ahead of the
/// receiver's pop(): that is its credit. Channels have separate windows, so none can block another, and a frame that
/// was accepted always arrives without further help from the receiving thread.
///
/// Nothing here blocks or allocates. One thread at a time may send and one at a time may receive (they may differ).
/// Both ring the peer's bell when the peer can continue. Before the link is up, try_send returns false and front
/// nullptr. After the link has failed, front first returns what had arrived, then both throw the link's Error
/// (kPeerLost, ...).
class Channel {
 public:
  virtual ~Channel() = default;

  /// Accepts the whole frame and returns true (the payload may be reused at once), or returns false for lack of credit.
  /// `header.payload_bytes` must equal `payload.size()` and be at most max_payload().
  virtual bool try_send(const FrameHeader& header, std::span<const std::byte> payload) = 0;

  /// Returns whether the peer can read payloads in this process's arena (EndpointOptions::arena).
  virtual bool can_lend() const noexcept { return false; }

  /// As try_send, for a payload at `place` of the arena, which the peer uses there: it must not change until
  /// has_returned() or revoke(). `header.where` is kLent, or kForResult if the peer may write there; with kThere only
  /// the header is sent. Returns where the payload of an accepted frame is: as stated, or kHere if it was copied,
  /// because the system has no descriptor left. Only if can_lend(). The first frame from a slab of the arena allocates.
  virtual std::optional<Payload> try_lend(const FrameHeader& /*header*/, std::span<const std::byte> /*payload*/,
                                          const ArenaPlace& /*place*/) {
    throw Error(ErrorKind::kInternal, "a frame was lent over a link that cannot lend");
  }

  /// Returns whether the peer has popped every frame that was lent to it.
  virtual bool has_returned() { return true; }

  /// Ends all loans: a peer that is still reading finds the frame no longer intact, and none begins to write. The
  /// memory may change once written_range() is empty; until then, the peer is writing there, or is stopped: see
  /// Arena::detach. A peer whose process has ended writes nothing.
  virtual void revoke() noexcept {}
  virtual std::optional<ArenaRange> written_range() const noexcept { return std::nullopt; }

  /// The oldest frame that was received and not popped, or nullptr. Stays valid until pop(). A lent frame that the peer
  /// has revoked is returned too: see is_intact().
  virtual const Frame* front() = 0;

  /// Returns whether the payload of the frame that front() returned is still what was sent: false for a lent one that
  /// the peer has revoked, whose payload may be empty. To be asked before the payload is read, and again after that and
  /// before what was made of it is used.
  virtual bool is_intact() const noexcept { return true; }

  /// Begins to replace the payload of the frame that front() returned, which is kForResult, and returns its memory;
  /// nullptr if the frame is no longer intact. end_write() must follow soon: the peer may wait for it.
  virtual std::byte* begin_write() noexcept { return nullptr; }
  virtual void end_write() noexcept {}

  /// Releases the oldest frame and returns its credit to the sender. Only after front() returned non-null.
  virtual void pop() = 0;

  /// The maximum size of one payload: a quarter of the window, or less.
  virtual std::size_t max_payload() const noexcept = 0;
  virtual std::size_t window_bytes() const noexcept = 0;
};

enum class LinkKind : std::uint8_t { kShm, kTcp, kUcx };
const char* to_string(LinkKind kind) noexcept;

enum class LinkState : std::uint8_t { kConnecting, kUp, kClosed, kFailed };

/// The byte connection of one process pair. Opened lazily by Endpoint::link; owned by the endpoint and as long-lived.
/// All functions are thread-safe.
class Link {
 public:
  virtual ~Link() = default;
  virtual const PeerId& peer() const noexcept = 0;
  virtual LinkKind kind() const noexcept = 0;
  virtual LinkState state() const noexcept = 0;

  /// Finds or makes the channel. The reference stays valid until the endpoint is destroyed. Allocates: call it once and
  /// keep the result.
  virtual Channel& channel(const ChannelId& id) = 0;

  /// Frees the channel's window on this side. Later frames for it are dropped, also if only the peer has opened it, or
  /// opens it later. Call it when the group is gone and no thread uses the channel. An id is used once on a link:
  /// channel() throws Error(kInvalidArgument) for a closed one.
  virtual void close_channel(const ChannelId& id) = 0;

  /// Queues a short control message (at most kMaxControlBytes) outside every channel; it arrives in
  /// LinkObserver::on_control, perhaps before frames that were accepted earlier. Returns false when the link is not
  /// connected or its control queue is full.
  virtual bool send_control(std::span<const std::byte> message) = 0;

  /// The same for a message that must not overtake frames: it arrives after every frame accepted before the call.
  virtual bool send_control_after_frames(std::span<const std::byte> message) = 0;

  /// Returns the port for messages from memory to memory, devices' included; nullptr if the link has none, or none yet.
  virtual DirectPort* direct() noexcept { return nullptr; }

  /// Returns "shm", "tcp 10.0.0.1:4711 -> 10.0.0.2:4712" or "ucx rc_mlx5 cuda_copy, beside tcp ...", for messages.
  virtual std::string describe() const = 0;
};
inline constexpr std::size_t kMaxControlBytes = 4096;

/// Receives an endpoint's events. Called on the endpoint's loop thread; must not block.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  virtual void on_control(Link& link, std::span<const std::byte> message) = 0;

  /// Exactly once per link that opens: from now on send_control reaches the peer, even one that is about to close.
  virtual void on_link_open(Link& /*link*/) {}

  /// Exactly once per link that failed: `error` is kPeerLost (death, silence, unreachable), kRefused (key, job,
  /// attempt, version) or kProtocol. A peer that closed in good order (Endpoint::shutdown) is reported as kPeerLost
  /// with `closed_in_order` set; nothing is wrong unless an operation still needs it.
  virtual void on_link_failed(Link& link, const Error& error, bool closed_in_order) = 0;
};

}  // namespace atl::transport
