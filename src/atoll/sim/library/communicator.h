// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "atoll/core/error.h"
#include "atoll/core/store.h"
#include "atoll/sim/device/memory.h"
#include "atoll/sim/device/stream.h"
#include "atoll/sim/library/call.h"
#include "atoll/sim/library/peers.h"

namespace atl::sim {

/// The memory of one device of this process.
using MemoryOf = std::function<DeviceMemory&(int device)>;

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  std::chrono::nanoseconds timeout{std::chrono::minutes(30)};  ///< for the ranks to meet
  std::chrono::nanoseconds longest_delay{0};  ///< each operation takes up to that much longer on this rank, at random
  std::uint64_t seed = 0;                     ///< of the delays
};

/// One rank's part of a group of processes (or threads) of one host whose simulated devices exchange data. Each rank reads the
/// others' device memory where it lies and writes its own only, so a rank that has given up an operation finds its memory
/// untouched by it. The first error is final, for all ranks. Thread-safe.
class Communicator {
 public:
  /// Meets the other ranks through `store`, whose keys must be this communicator's alone. Throws what meet() does.
  Communicator(Store& store, const CommunicatorOptions& options, MemoryOf memory_of);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// The number of the next operation: of collectives, or of messages to or from `peer`. All ranks must issue collectives, and
  /// both sides of a pair messages, in the same order.
  std::uint64_t next_sequence(Operation operation, int peer = -1);

  /// This rank's part of `call`, which begins at the modelled time `begin`; returns the modelled time of its end. Blocks until the
  /// data is there and nobody reads this rank's memory any more. Of operations whose sequences differ by kSlots or more, and of
  /// messages between the same two ranks, the later must run after the earlier. Throws Error that names operation, sequence
  /// and rank: kTimeout, kMismatch, kPeerLost, kAborted or kUnavailable.
  Clock::time_point run(const Call& call, Clock::time_point begin);

  /// Fails the communicator on all ranks with `reason`; whoever waits wakes at once. Needs no peer.
  void abort(const std::string& reason) noexcept;

  /// Takes leave. Others fail only when they need this rank for something.
  void leave();

  /// The first error, of whichever rank.
  std::optional<Error> error() const;

 private:
  std::chrono::nanoseconds draw_delay();
  void pause(std::chrono::nanoseconds time) noexcept;

  const CommunicatorOptions options_;
  const MemoryOf memory_of_;
  Peers peers_;
  std::mutex mutex_;  // of what follows
  std::uint64_t collectives_ = 0;
  std::map<std::pair<Operation, int>, std::uint64_t> messages_;
  std::mt19937_64 random_;
};

}  // namespace atl::sim
