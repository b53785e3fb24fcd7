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

// The device-direct scheme of "Joint training on AMD and NVIDIA" (papers' section 2.2): a message is copied inside the device
// into a ring of chunks, which alone is registered with the network, and travels from there.
//
//   sender     user's memory --copy--> chunk --network--> chunk --copy--> user's memory     receiver
//
// Steps of different chunks overlap. Against the direct way (DirectPort::remember of the user's memory) it costs one copy inside
// the device on each side and saves a registration for memory that is used once.
namespace atl::transport {

/// Copies inside one kind of memory. Whoever knows the device implements it.
class MemoryCopier {
 public:
  virtual ~MemoryCopier() = default;
  using Copied = std::function<void(const Error* problem)>;

  /// Begins to copy; `copied` is called once, on any thread or inside this call, when the bytes are there. Must not block.
  virtual void copy(void* to, const void* from, std::size_t bytes, Copied copied) = 0;
};

/// One direction of messages to or from one peer. The peer has one of equal chunk size; number, order and sizes of messages
/// are as for DirectPort. Thread-safe.
class ChunkRing {
 public:
  enum class Direction { kSend, kReceive };

  /// `memory` is cut into chunks of `chunk_bytes`, at least one, and stays until the ring goes. Throws
  /// Error(kInvalidArgument), and what DirectPort::remember throws.
  ChunkRing(DirectPort& port, MemoryCopier& copier, Direction direction, const DirectBuffer& memory,
            std::size_t chunk_bytes);

  /// Not before every `done` was called.
  ~ChunkRing();
  ChunkRing(const ChunkRing&) = delete;
  ChunkRing& operator=(const ChunkRing&) = delete;

  /// Sends or receives all of `buffer`; `done` as for DirectPort, on the loop thread or one of the copier's. After a failure the
  /// rest of the message stays away: with an error of the copier's, the peer learns of it only with the end of the link.
  void pass(std::uint64_t number, const DirectBuffer& buffer, DirectPort::Done done);

 private:
  struct Message {
    std::uint64_t number = 0;
    DirectBuffer buffer;
    DirectPort::Done done;
    std::size_t begun = 0;      // bytes
    bool is_begun = false;      // all of it; an empty message has one chunk, too
    std::size_t under_way = 0;  // chunks
    std::optional<Error> problem;
  };
  enum class State { kFree, kFirst, kBetween, kSecond };

  /// A chunk: its first step brings bytes into it, the second one takes them out.
  struct Slot {
    State state = State::kFree;
    std::shared_ptr<Message> message;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  void pump();
  bool next_step(std::size_t* slot, bool* is_second, std::vector<std::shared_ptr<Message>>* finished);
  void begin_step(std::size_t slot, bool is_second);
  void end_step(std::size_t slot, bool is_second, const Error* problem);
  void copy_chunk(const Slot& slot, void* chunk, bool into_chunk, DirectPort::Done ended);

  DirectPort& port_;
  MemoryCopier& copier_;
  const Direction direction_;
  const DirectBuffer memory_;
  const std::size_t chunk_bytes_;

  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::vector<Slot> slots_;
  std::size_t first_at_ = 0;  // the next slot to begin with, round the ring
  std::size_t second_at_ =
      0;                     // the next one whose second step begins: in the same order, as equal numbers pair in order
  bool is_pumping_ = false;  // some thread begins steps: it will see what changes
  std::deque<std::shared_ptr<Message>> waiting_;    // not all begun
  std::vector<std::shared_ptr<Message>> finished_;  // whose `done` is still to be called
};

}  // namespace atl::transport
