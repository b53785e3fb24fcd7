// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "atoll/core/error.h"
#include "atoll/transport/chunk_ring.h"
#include "atoll/transport/direct.h"

// Messages of a group that go from device to device through rings of chunks (transport/chunk_ring.h), without the host's
// memory where the network knows the device's. Each end chooses by itself where its ring is.
namespace atl::collectives {

/// A device whose messages can do so. Implemented by whoever knows the device; thread-safe.
class MessageDevice {
 public:
  virtual ~MessageDevice() = default;

  /// Whether `port` takes memory of this device.
  virtual bool is_reached(const transport::DirectPort& port) const noexcept = 0;

  /// `bytes` for a ring: the device's where `port` takes that, else the host's, staged chunk by chunk. Throws
  /// Error(kUnavailable), or what the device throws.
  virtual std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort& port, std::size_t bytes) = 0;
};

/// What a message is sent from, where that is not the host's memory with all of it.
struct MessageOrigin {
  std::shared_ptr<MessageDevice> device;  ///< the memory lies there
  /// The message still comes into the memory: so many bytes, the first, have. Whoever raises it calls Group::note_loaded().
  std::shared_ptr<const std::atomic<std::uint64_t>> loaded;
};

/// Where a message that is received comes to. One of on_device() and on_host() is called, once, when it is known how the message
/// comes; nothing here may wait for the device. Calls do not overlap.
class Landing {
 public:
  virtual ~Landing() = default;
  virtual const std::shared_ptr<MessageDevice>& device() const noexcept = 0;  ///< may be null
  virtual std::byte* on_device() = 0;  ///< through a ring, to this address there; on the host without a device
  virtual std::byte* on_host() = 0;    ///< by frames, into this memory
  virtual void arrived(std::uint64_t /*bytes*/) {}  ///< that many, the first, are in on_host(); before the last
};

/// A message's way through the rings of this rank. Thread-safe.
class Flight {
 public:
  /// By the ring.
  void end(const Error* problem);

  /// Whether it has ended, and how.
  bool is_over() const;
  std::optional<Error> problem() const;

  /// Whoever waited has gone on: `tell` is called at the end, or false when that has been.
  bool hand_over(std::function<void()> tell);

 private:
  mutable std::mutex mutex_;
  bool is_over_ = false;
  std::optional<Error> problem_;
  std::function<void()> tell_;
};

/// The rings of a group on this rank, made when messages need them: one per peer, direction and device. Thread-safe.
class DirectMessages {
 public:
  /// `ended` is called after each flight's end, on any thread; it must not block.
  explicit DirectMessages(std::function<void()> ended) : ended_(std::move(ended)) {}

  /// Abandons what is under way, and waits until nothing copies from or to messages' memory any more.
  ~DirectMessages();
  DirectMessages(const DirectMessages&) = delete;
  DirectMessages& operator=(const DirectMessages&) = delete;

  struct Passage {
    int peer;
    transport::DirectPort* port;
    transport::ChunkRing::Direction direction;
    std::uint64_t number;
    std::shared_ptr<MessageDevice> device;  // nullptr: `data` is the host's
    std::byte* data;
    std::uint64_t bytes;
    std::shared_ptr<Landing> landing;  // else what says where, on `device`
    std::shared_ptr<Flight> flight;
  };

  /// Lines a message up. The two ends of a pair add its messages in the same order. Does not block.
  void add(Passage passage);

  /// Begins what was lined up. Without locks that the loop thread may wait for.
  void go_on();

  /// Ends every flight with `why`, and those that are added later.
  void abandon(const Error& why);

 private:
  using Key = std::tuple<int, transport::ChunkRing::Direction, std::shared_ptr<MessageDevice>>;
  void begin(const Passage& passage);
  std::shared_ptr<transport::ChunkRing> ring(const Passage& passage);
  void end(Flight& flight, const Error* problem);

  const std::function<void()> ended_;
  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::deque<Passage> waiting_;
  std::size_t in_air_ = 0;
  std::condition_variable landed_;
  bool is_beginning_ = false;  // some thread begins messages: it will see what is added
  std::map<Key, std::shared_ptr<transport::ChunkRing>> rings_;
  std::optional<Error> abandoned_;
};

}  // namespace atl::collectives
