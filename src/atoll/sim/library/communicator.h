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

/// Returns the memory of one device of this process.
using MemoryOf = std::function<DeviceMemory&(int device)>;

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  std::chrono::nanoseconds timeout{std::chrono::minutes(30)};  ///< for all ranks to join
  std::chrono::nanoseconds longest_delay{0};  ///< the largest random delay of an operation on this rank
  std::uint64_t seed = 0;                     ///< seed of the delays
};

/// One rank's part of a group of processes (or threads) of one host whose simulated devices exchange data. Each rank
/// reads the others' device memory directly and writes only its own, so an operation never writes to the memory of a
/// rank that has given it up. The first error is final, for all ranks. Thread-safe.
class Communicator {
 public:
  /// Meets the other ranks through `store`, whose keys no other communicator may use. Throws what meet() throws.
  Communicator(Store& store, const CommunicatorOptions& options, MemoryOf memory_of);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Returns the number of the next operation: of collectives, or of messages to or from `peer`. All ranks must issue
  /// collectives, and both ends of a message, in the same order.
  std::uint64_t next_sequence(Operation operation, int peer = -1);

  /// Runs this rank's part of `call`, which begins at the modelled time `begin`; returns the modelled time of its end.
  /// Blocks until the data has arrived and no other rank still reads this rank's memory. Of operations whose sequences
  /// differ by kSlots or more, and of messages between the same two ranks, the later must run after the earlier. Throws
  /// Error that names operation, sequence and rank: kTimeout, kMismatch, kPeerLost, kAborted or kUnavailable.
  Clock::time_point run(const Call& call, Clock::time_point begin);

  /// Fails the communicator on all ranks with `reason` and wakes all waiting threads. Needs no peer.
  void abort(const std::string& reason) noexcept;

  /// Leaves the group. Other ranks fail only when they need this rank.
  void leave();

  /// Returns the first error of any rank.
  std::optional<Error> error() const;

 private:
  std::chrono::nanoseconds draw_delay();
  void pause(std::chrono::nanoseconds time) noexcept;

  const CommunicatorOptions options_;
  const MemoryOf memory_of_;
  Peers peers_;
  std::mutex mutex_;  // guards the following
  std::uint64_t collectives_ = 0;
  std::map<std::pair<Operation, int>, std::uint64_t> messages_;
  std::mt19937_64 random_;
};

}  // namespace atl::sim
