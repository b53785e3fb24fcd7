// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/describe.h"
#include "atoll/collectives/failure.h"
#include "atoll/collectives/group.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/collectives/schedule.h"
#include "atoll/transport/doorbell.h"

namespace atl::collectives {

/// Runs schedules over a group's channels, on the calling thread, one at a time. Allocates only when a schedule is larger than any before.
/// Peers that left the group are told with mark_left, from any thread.
class Executor {
 public:
  /// Called on the executing thread, about once a second, with each peer that an operation has been waiting for without any progress.
  using StallObserver = std::function<void(int peer)>;

  Executor(PeerPorts& ports, const Topology& topology, const Failure& failure, std::chrono::nanoseconds spin,
           StallObserver on_stall);

  /// Runs `schedule` to its end. Throws Error that names the operation, this rank, the peers waited for and the phase: kMismatch, kTimeout at `deadline`,
  /// kPeerLost; or the group's failure as soon as it is set.
  void run(const Schedule& schedule, const Call& call, const Signature& signature, Deadline deadline);

  void mark_left(int peer) noexcept;
  const TimeSplit& time_split() const noexcept { return split_; }

 private:
  struct LaneState {
    std::uint32_t next = 0;  // steps done
    std::uint32_t count = 0;
  };
  struct Run;  // what one run() works on

  bool try_step(Run& run, const Step& step);
  bool try_send(Run& run, const Step& step);
  bool try_receive(Run& run, const Step& step);
  bool try_reduce(Run& run, const Step& step);
  const transport::Frame* expect(Run& run, int peer, const Step& step);
  void prepare(Run& run);
  bool advance_lanes(Run& run);
  void wait(Run& run, transport::Sleeper& sleeper);
  void open_flows(int peer);
  void check_left(Run& run);
  void report_stall(const Run& run) const;
  void check_leftovers(const Run& run);
  std::chrono::milliseconds patience(const Run& run) const;
  [[noreturn]] void time_out(Run& run) const;

  template <typename Visit>
  void for_each_awaited(const Run& run, Visit&& visit) const;

  transport::Channel& channel(int peer, Flow flow) {
    transport::Channel*& known = channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
    if (!known) open_flows(peer);
    return *known;
  }

  PeerPorts& ports_;
  const Topology& topology_;
  const Failure& failure_;
  const std::chrono::nanoseconds spin_;
  const StallObserver on_stall_;
  std::vector<transport::Channel*> channels_;
  std::vector<bool> results_wait_;  // by peer: a result has found no room on the way there
  std::vector<LaneState> lanes_;
  std::vector<std::uint32_t> open_lanes_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte> scratch_;
  std::unique_ptr<std::atomic<bool>[]> left_;
  std::atomic<bool> somebody_left_{false};
  TimeSplit split_;
};

}  // namespace atl::collectives
