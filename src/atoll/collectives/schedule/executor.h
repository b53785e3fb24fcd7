// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/collectives/checksum.h"
#include "atoll/collectives/describe.h"
#include "atoll/collectives/failure.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/collectives/refusals.h"
#include "atoll/collectives/roll_call.h"
#include "atoll/collectives/schedule/schedule.h"
#include "atoll/transport/doorbell.h"

namespace atl::collectives {

/// Between two looks at an input that comes from a device, which rings no bell.
inline constexpr std::chrono::microseconds kPauseForInput{30};

/// Called on the executing thread.
class StallObserver {
 public:
  virtual ~StallObserver() = default;

  /// While an operation waits without any progress, as often as until_next_look() says.
  virtual void on_stall(const Stall& stall) = 0;

  /// An operation that had waited so is over.
  virtual void on_stall_over(const Stall& stall) = 0;

  /// A peer whose data an operation waits for has gone on to a later one: it may have refused this one, and the news is on its way.
  virtual void on_peer_ahead(int peer) = 0;

  /// For the error of an operation that ran out of time: why it stands still, or "".
  virtual std::string account(const Stall& stall) = 0;
};

/// Runs schedules over a group's channels, on the calling thread, one at a time. Allocates only when a schedule is larger than any before.
/// Peers that left the group are told with mark_left, from any thread.
class Executor {
 public:
  Executor(PeerPorts& ports, const Topology& topology, const Failure& failure, const Refusals& refusals,
           std::chrono::nanoseconds spin, StallObserver& stalls, bool check_data);

  /// Runs `schedule` to its end. Throws Error that names the operation, this rank, the peers waited for and the phase: kMismatch, kTimeout at `deadline`,
  /// kPeerLost; or the group's failure, or the operation's refusal by a peer, as soon as it is known. With check_data also kProtocol where bytes were changed between two ranks' memory, and
  /// kInternal where ranks hold different results of the operation before.
  void run(const Schedule& schedule, const Call& call, const Signature& signature, Deadline deadline);

  void mark_left(int peer) noexcept;
  const TimeSplit& time_split() const noexcept { return split_; }
  /// Payload that this rank has sent to `peer` in collectives. Any thread.
  std::uint64_t sent_bytes(int peer) const noexcept {
    return sent_bytes_[static_cast<std::size_t>(peer)].load(std::memory_order_relaxed);
  }

 private:
  struct LaneState {
    std::uint32_t next = 0;  // steps done
    std::uint32_t count = 0;
    std::uint64_t checksum = 0;  // of the step that is to send; 0: not computed yet
  };
  struct Run;  // what one run() works on

  bool try_step(Run& run, const Step& step, LaneState& lane);
  bool try_send(Run& run, const Step& step, LaneState& lane);
  bool try_receive(Run& run, const Step& step);
  bool try_reduce(Run& run, const Step& step);
  const transport::Frame* expect(Run& run, int peer, const Step& step);
  const transport::Frame* next_frame(int peer, Flow flow, const Run& run);
  bool is_ahead(Run& run, int peer, const transport::FrameHeader& header);
  void check_ended(const Run& run) const;
  void check_payload(const Step& step, int peer, std::uint64_t stated, std::span<const std::byte> data) const;
  void check_last_result(int peer, std::uint64_t theirs) const;
  void remember_result(const Run& run);
  void prepare(Run& run);
  bool advance_lanes(Run& run);
  void wait(Run& run, transport::Sleeper& sleeper);
  void open_flows(int peer);
  void check_left(Run& run);
  Stall stall_of(const Run& run);
  void check_leftovers(const Run& run);
  std::chrono::milliseconds patience(const Run& run) const;
  [[noreturn]] void time_out(Run& run);

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
  const Refusals& refusals_;
  const std::chrono::nanoseconds spin_;
  StallObserver& stalls_;
  const bool check_data_;
  Checksum result_;
  std::uint64_t last_result_ = 0;  // checksum of what all ranks got from the last operation; 0: of nothing
  std::string last_name_;
  std::vector<transport::Channel*> channels_;
  std::vector<bool> results_wait_;  // by peer: a result has found no room on the way there
  std::vector<LaneState> lanes_;
  std::vector<std::uint32_t> open_lanes_;
  std::vector<const std::byte*> sources_;
  std::vector<int> awaited_;  // of the stall that is being reported
  std::vector<std::byte> scratch_;
  std::unique_ptr<std::atomic<bool>[]> left_;
  std::atomic<bool> somebody_left_{false};
  TimeSplit split_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> sent_bytes_;  // by peer; one thread at a time adds to it
};

}  // namespace atl::collectives
