// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/direct.h"
#include "atoll/transport/link.h"
#include "atoll/transport/ucx/context.h"

namespace atl::transport::ucx {

// The messages between the two ends of a UCX link: active messages through UCX, and control messages on the stream
// beside it. Host byte order (little-endian on every supported machine).

/// Identifiers of active messages.
enum class MessageKind : std::uint8_t {
  kProbe = 1,  ///< without content: shows that UCX works in this direction
  kFrame,      ///< note: where the frame belongs; content: FrameHeader and payload
  kCredit,     ///< note: all bytes of the channel that the receiver has released so far
};
inline constexpr std::uint8_t kMessageKinds = 4;  ///< one more than the largest

/// Precedes every message. It names the channel itself, because UCX may deliver messages in another order than they
/// were sent: no message needs an earlier one to be understood. UCX accepts messages from anyone who can reach its
/// ports, so every message contains the receiver's secret, which was sent over the authenticated stream only.
struct Note {
  std::uint64_t secret = 0;
  std::uint64_t group = 0;
  std::uint32_t index = 0;
  std::uint8_t bell = 0;
  std::uint8_t window_log2 = 0;  ///< of the channel's sender
  std::uint16_t zero = 0;
  std::uint64_t position = 0;  ///< kFrame: bytes of earlier frames, each with its padding
};
static_assert(sizeof(Note) == 32 && std::is_trivially_copyable_v<Note>);

inline Note note_of(std::uint64_t secret, const ChannelId& id, std::uint64_t window_bytes,
                    std::uint64_t position) noexcept {
  return {secret,
          id.group,
          id.index,
          static_cast<std::uint8_t>(id.bell),
          static_cast<std::uint8_t>(std::countr_zero(window_bytes)),
          0,
          position};
}

inline ChannelId channel_of(const Note& note) noexcept {
  return {note.group, note.index, static_cast<Bell>(note.bell)};
}

/// First byte of every control message on the stream.
enum class ControlKind : std::uint8_t {
  kUser = 1,     ///< Link::send_control: the message follows
  kAfterFrames,  ///< Link::send_control_after_frames: the message follows
  kMark,         ///< a Note follows: the next kAfterFrames or kLeaving waits for this position of the channel
  kLeaving,      ///< the sender closes in good order, once this, and any kLeaving of the peer, is answered
  kAllReceived,  ///< the answer: all frames before kLeaving have arrived
};

/// The maximum number of unfinished messages of one end in UCX, and so of receives under way at the other end.
inline constexpr std::size_t kMaxTransfers = 256;

/// One transfer: it and its bytes must not be changed from the call to the worker until the worker calls finish.
class Operation {
 public:
  /// Called once, on the loop, perhaps inside the call that started the transfer. `problem` is nullptr when it is
  /// complete; `bytes` is the size of a tagged receive. Must not destroy the worker. May throw Error, which becomes its
  /// trouble.
  virtual void finish(const Error* problem, std::size_t bytes) = 0;

 protected:
  ~Operation() = default;
};

/// The bytes that a transfer reads or writes. A registration spares the library a lookup.
struct Place {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  const Registration* registration = nullptr;
};

/// A received message, inside WorkerSink::on_message. It is dropped unless it is read there.
class Incoming {
 public:
  virtual std::size_t bytes() const noexcept = 0;
  /// Reads all of its bytes into `to`, which must have room for them. At most once.
  virtual void read(const Place& to, Operation& operation) = 0;

 protected:
  ~Incoming() = default;
};

/// Receives a worker's messages. Called on the loop, inside Worker::progress.
class WorkerSink {
 public:
  virtual ~WorkerSink() = default;
  /// May throw Error, which becomes the worker's trouble.
  virtual void on_message(MessageKind kind, std::span<const std::byte> note, Incoming& message) = 0;
};

/// One process's end of one link inside UCX. Each link has a worker of its own, so that a peer that died in the middle
/// of transfers can be removed with all of them. Everything is called on the loop.
///
///   Call progress until it returns false, then arm. If arm returns false, repeat; else wait for descriptor().
///
/// While a peer takes nothing of what UCX holds for it, arm keeps returning false: then try again by a timer.
class Worker {
 public:
  /// Throws Error(kUnavailable).
  Worker(std::shared_ptr<Context> context, WorkerSink& sink);

  /// Ends every transfer with an error, at once and without notifying the peer. Does nothing in a forked child.
  ~Worker();

  /// Returns the address for the peer's connect().
  std::vector<std::byte> address() const;

  /// For epoll; owned by UCX.
  int descriptor() const noexcept;

  /// Connects to the peer. Between two hosts UCX detects a broken path by itself; its transports over shared memory
  /// cannot, so on one host the link's stream does. Throws Error(kUnavailable) when no transport reaches the peer.
  void connect(std::span<const std::byte> peer_address, bool same_host);

  /// Starts to send; `note` must not be changed until the operation has finished, which also reports a failure.
  void send(MessageKind kind, std::span<const std::byte> note, const Place& from, Operation& operation);

  /// Send and receive a message by tag, for memory of any kind, directly from place to place. Messages with equal tags
  /// keep their order.
  void send_tagged(std::uint64_t tag, const Place& from, Operation& operation);
  void receive_tagged(std::uint64_t tag, const Place& to, Operation& operation);

  /// Returns whether there was anything to do.
  bool progress();
  bool arm();

  /// The first error, whether or not an operation was told of it too.
  const std::optional<Error>& trouble() const noexcept;

  /// Returns "posix cma", once something was sent.
  std::string transports() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::transport::ucx
