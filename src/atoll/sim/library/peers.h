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

/// The other ranks of a communicator: their devices' memory, mapped for reading, and their lives. A thread of its own receives
/// memory as it is announced, and fails the communicator when a process ends that has not left it. Any thread.
class Peers {
 public:
  Peers(Meeting meeting, int rank);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Control& control() const noexcept { return *control_; }

  /// Passes the memory of this rank's `device` to all others; only the first time.
  void announce(int device, const DeviceMemory& memory);

  /// Whether `rank` has announced its `device`. The control's waiters are woken when it does.
  bool knows(int rank, int device) const noexcept;

  /// Where `region` of `rank`, whose device is known, can be read. Throws Error(kProtocol) when it lies outside of it.
  const std::byte* at(int rank, const Region& region) const;

  /// Says goodbye: the others no longer fail when this process ends. Mapped memory stays until the end.
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
