// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "atoll/sim/device/memory.h"
#include "atoll/sim/library/meeting.h"

namespace atl::sim {

inline constexpr int kMaxArenas = 64;  ///< devices of one process

/// The other ranks of a communicator: maps their devices' memory for reading and watches their processes. A thread
/// receives memory as it is announced, and fails the communicator when a process ends without having left it.
/// Thread-safe.
class Peers {
 public:
  Peers(Meeting meeting, int rank);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Control& control() const noexcept { return *control_; }

  /// Sends the memory of this rank's `device` to all others; does nothing after the first time.
  void announce(int device, const DeviceMemory& memory);

  /// Returns whether `rank` has announced its `device`. The control's waiting threads are woken when it does.
  bool knows(int rank, int device) const noexcept;

  /// Returns where `region` of `rank`, whose device is known, can be read. Throws Error(kProtocol) if it is outside the
  /// device.
  const std::byte* at(int rank, const Region& region) const;

  /// Leaves the group: the others no longer fail when this process ends. Memory stays mapped until destruction.
  void leave();

 private:
  struct Arena;
  void serve();
  void receive(int rank);

  const int rank_;
  const std::unique_ptr<Control> control_;
  std::vector<Meeting::Peer> peers_;
  Fd stop_;
  std::vector<std::array<std::atomic<Arena*>, kMaxArenas>> arenas_;  // by rank and device
  std::mutex mutex_;
  std::array<bool, kMaxArenas> announced_{};
  bool left_ = false;
  std::thread thread_;
};

}  // namespace atl::sim
