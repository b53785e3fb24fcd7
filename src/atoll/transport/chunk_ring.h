// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/direct.h"

// The device-direct scheme of "Joint training on AMD and NVIDIA" (section 2.2): a message is copied inside the device
// into a ring of chunks, which alone is registered with the network, and is sent from there.
//
//   sender     user's memory --copy--> chunk --network--> chunk --copy--> user's memory     receiver
//
// Steps of different chunks overlap. Compared with the direct way (DirectPort::remember of the user's memory) it costs
// one copy inside the device on each side, and saves the registration of memory that is used once.
namespace atl::transport {

/// A ring's memory, and how to copy between it and the memory of messages. Implemented by the layer that knows the
/// device.
class RingMemory {
 public:
  virtual ~RingMemory() = default;
  using Copied = std::function<void(const Error* problem)>;

  /// Returns all of it, as the network addresses it.
  virtual DirectBuffer buffer() const noexcept = 0;

  /// Starts a copy between a message's memory and buffer(). `copied` is called once, on any thread or inside this call,
  /// when the copy is complete. Must not block.
  virtual void copy(void* to, const void* from, std::size_t bytes, Copied copied) = 0;

  /// Abandons the copies under way, which are not needed any more: every `copied` is called soon, whatever the device
  /// waits for.
  virtual void give_up() noexcept = 0;
};

/// One direction of messages to or from one peer, which has a ring with the same chunk size. Numbers, order and sizes
/// of messages are as for DirectPort. The network accesses the ring alone, never a message's memory. Thread-safe.
class ChunkRing : public std::enable_shared_from_this<ChunkRing> {
 public:
  enum class Direction { kSend, kReceive };

  /// Cuts the memory into chunks of `chunk_bytes`, at least one. `port` must outlive its transfers. Throws
  /// Error(kInvalidArgument), and what DirectPort::remember throws.
  static std::shared_ptr<ChunkRing> make(DirectPort& port, std::shared_ptr<RingMemory> memory, Direction direction,
                                         std::size_t chunk_bytes);

  /// Must not be called before every `done` was called, except after abandon().
  ~ChunkRing();

  /// Sends or receives all of `buffer`. `done` is as for DirectPort, but may be called on the loop thread, on a thread
  /// of the memory, or inside pass() or abandon(). After a failure the rest of the message is not transferred; the peer
  /// learns of a failed copy only when the link ends.
  void pass(std::uint64_t number, const DirectBuffer& buffer, DirectPort::Done done);

  /// Ends every message with `why` as soon as no copy from or to its memory is under way, and releases the chunks from
  /// the port when it is done with them. Messages passed later end at once.
  void abandon(const Error& why);

 private:
  struct Message {
    std::uint64_t number = 0;
    DirectBuffer buffer;
    DirectPort::Done done;
    std::size_t started = 0;    // bytes
    bool is_started = false;    // all of it; an empty message has one chunk, too
    std::size_t under_way = 0;  // chunks
    std::size_t copies = 0;     // of these, between the message's memory and the ring
    bool is_reported = false;   // `done` was called, or will be from finished_
    std::optional<Error> problem{};
  };
  enum class State { kFree, kFirst, kBetween, kSecond };

  /// A chunk: its first step copies or receives bytes into it, the second one takes them out.
  struct Slot {
    State state = State::kFree;
    std::shared_ptr<Message> message;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  struct Step {
    std::size_t slot;
    bool is_second;
  };

  ChunkRing(DirectPort& port, std::shared_ptr<RingMemory> memory, Direction direction, std::size_t chunk_bytes);
  bool copies(bool is_second) const noexcept { return (direction_ == Direction::kSend) != is_second; }
  void pump();
  std::optional<Step> next_step(std::vector<std::shared_ptr<Message>>& finished);
  std::size_t& under_way(Message& message, bool is_second) noexcept;
  void begin_step(std::size_t slot, bool is_second);
  void end_step(std::size_t slot, bool is_second, const Error* problem);
  void report_once(const std::shared_ptr<Message>& message);
  void forget() noexcept;

  DirectPort& port_;
  const std::shared_ptr<RingMemory> memory_;
  const Direction direction_;
  const std::size_t chunk_bytes_;

  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::vector<Slot> slots_;
  std::size_t first_at_ = 0;   // the slot whose first step starts next, round the ring
  std::size_t second_at_ = 0;  // whose second step starts next, in the same order because equal numbers pair in order
  bool is_pumping_ = false;    // a thread is starting steps: it will see what changes
  std::size_t at_port_ = 0;    // steps of the network under way
  bool is_known_ = false;      // to the port
  std::optional<Error> abandoned_;
  std::deque<std::shared_ptr<Message>> waiting_;    // not all started
  std::vector<std::shared_ptr<Message>> finished_;  // whose `done` is still to be called
};

}  // namespace atl::transport
