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

// Messages of a group that go from device to device through rings of chunks (transport/chunk_ring.h), bypassing host
// memory if the network can access the device's. Each end chooses the memory of its own ring.
namespace atl::collectives {

/// A device that can send and receive such messages. Implemented by the layer that knows the device; thread-safe.
class MessageDevice {
 public:
  virtual ~MessageDevice() = default;

  /// Returns whether `port` can access memory of this device.
  virtual bool is_reached(const transport::DirectPort& port) const noexcept = 0;

  /// Allocates `bytes` for a ring: in the device's memory if `port` can access it, else in the host's, staged chunk by
  /// chunk. Throws Error(kUnavailable), or what the device throws.
  virtual std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort& port, std::size_t bytes) = 0;
};

/// The source of a message that is not simply complete host memory.
struct MessageOrigin {
  std::shared_ptr<MessageDevice> device;  ///< the device that holds the memory
  /// If set, the message is still being loaded into the memory: the number of leading bytes that are there. Call
  /// Group::note_loaded() after raising it.
  std::shared_ptr<const std::atomic<std::uint64_t>> loaded;
};

/// The destination of a received message. Either on_device() or on_host() is called, once, when it is known how the
/// message comes; nothing here may wait for the device. Calls do not overlap.
class Landing {
 public:
  virtual ~Landing() = default;
  virtual const std::shared_ptr<MessageDevice>& device() const noexcept = 0;  ///< may be null
  virtual std::byte* on_device() = 0;  ///< for a message through a ring; a host address if device() is null
  virtual std::byte* on_host() = 0;    ///< the message comes in frames, into this memory
  virtual void arrived(std::uint64_t /*bytes*/) {}  ///< the number of bytes in on_host() so far; not called at the end
};

/// The status of a message's transfer through the rings of this rank. Thread-safe.
class TransferStatus {
 public:
  /// Ends the transfer; called by the ring.
  void end(const Error* problem) {
    std::function<void()> notify;
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      if (problem != nullptr) problem_ = *problem;
      notify.swap(notify_);
    }
    if (notify) notify();
  }

  /// Returns whether the transfer has ended, and its error if it failed.
  bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }
  std::optional<Error> problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

  /// Calls `notify` when the transfer ends, for an owner that no longer waits. Returns false, without a call, if it has
  /// ended already.
  bool notify_at_end(std::function<void()> notify) {
    const std::lock_guard lock(mutex_);
    if (is_over_) return false;
    notify_ = std::move(notify);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  bool is_over_ = false;
  std::optional<Error> problem_;
  std::function<void()> notify_;
};

/// The rings of a group on this rank, made when messages need them: one per peer, direction and device. Thread-safe.
class DirectMessages {
 public:
  /// `ended` is called after the end of each transfer, on any thread; it must not block.
  explicit DirectMessages(std::function<void()> ended) : ended_(std::move(ended)) {}

  /// Abandons running transfers, and waits until nothing copies from or to the messages' memory any more.
  ~DirectMessages();
  DirectMessages(const DirectMessages&) = delete;
  DirectMessages& operator=(const DirectMessages&) = delete;

  struct Transfer {
    int peer;
    transport::DirectPort* port;
    transport::ChunkRing::Direction direction;
    std::uint64_t number;
    std::shared_ptr<MessageDevice> device;  // nullptr: `data` is host memory
    std::byte* data;
    std::uint64_t bytes;
    std::shared_ptr<Landing> landing;  // if set, it names the address on `device`, and `data` is unused
    std::shared_ptr<TransferStatus> status;
  };

  /// Queues a message. The two ends of a pair add its messages in the same order. Does not block.
  void add(Transfer transfer);

  /// Starts the queued messages. Call it without holding locks that the loop thread may wait for.
  void start_queued();

  /// Ends every transfer with `why`, also those that are added later.
  void abandon(const Error& why);

 private:
  using Key = std::tuple<int, transport::ChunkRing::Direction, std::shared_ptr<MessageDevice>>;
  void start(const Transfer& transfer);
  std::shared_ptr<transport::ChunkRing> ring(const Transfer& transfer);
  void end(TransferStatus& status, const Error* problem);

  const std::function<void()> ended_;
  std::mutex mutex_;  // guards the members below; no callback is called under it
  std::deque<Transfer> waiting_;
  std::size_t running_ = 0;
  std::condition_variable all_ended_;
  bool is_starting_ = false;  // a thread is starting messages: it will see those that are added
  std::map<Key, std::shared_ptr<transport::ChunkRing>> rings_;
  std::optional<Error> abandoned_;
};

}  // namespace atl::collectives
