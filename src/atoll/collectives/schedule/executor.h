// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/collectives/checksum.h"
#include "atoll/collectives/describe.h"
#include "atoll/collectives/peer_ports.h"
#include "atoll/collectives/reduce/fold_threads.h"
#include "atoll/collectives/refusals.h"
#include "atoll/collectives/roll_call.h"
#include "atoll/collectives/schedule/schedule.h"
#include "atoll/transport/doorbell.h"

namespace atl::collectives {

/// The pause between two polls of an input that comes from a device, which cannot wake this thread.
inline constexpr std::chrono::microseconds kPauseForInput{30};

/// Observes operations that stall. Called on the executing thread.
class StallObserver {
 public:
  virtual ~StallObserver() = default;

  /// Called while an operation waits without any progress, at the intervals of until_next_check().
  virtual void on_stall(const Stall& stall) = 0;

  /// Called when an operation that had stalled is over.
  virtual void on_stall_over(const Stall& stall) = 0;

  /// Called when a peer whose data an operation waits for has continued with a later operation: it may have refused
  /// this one, and its refusal is on the way.
  virtual void on_peer_ahead(int peer) = 0;

  /// Returns why an operation is stalled, for its timeout error, or "".
  virtual std::string explain(const Stall& stall) = 0;
};

/// Runs schedules over a group's channels, on the calling thread, one at a time. Allocates only if a schedule is larger
/// than all before, and when memory is first lent to a peer. Call mark_left, from any thread, for peers that have left
/// the group.
class Executor {
 public:
  Executor(PeerPorts& ports, const Topology& topology, const Failure& failure, const Refusals& refusals,
           std::chrono::nanoseconds spin, FoldThreads& threads, StallObserver& stalls, bool check_data);

  /// Runs `schedule` to its end. Throws an Error that names the operation, this rank, the peers waited for and the
  /// phase: kMismatch, kTimeout at `deadline`, or kPeerLost; or the group's failure, or a peer's refusal of the
  /// operation, as soon as it is known. With check_data also kProtocol if bytes were changed between two ranks' memory,
  /// and kInternal if ranks hold different results of the operation before.
  void run(const Schedule& schedule, const Call& call, const Signature& signature, Deadline deadline);

  void mark_left(int peer) noexcept;

  /// Any thread, like sent_bytes().
  TimeSplit time_split() const noexcept;

  /// Returns the payload bytes that this rank has sent to `peer` in collectives. May be called on any thread.
  std::uint64_t sent_bytes(int peer) const noexcept {
    return sent_bytes_[static_cast<std::size_t>(peer)].load(std::memory_order_relaxed);
  }

 private:
  struct LaneState {
    std::uint32_t next = 0;  // steps done
    std::uint32_t count = 0;
    std::uint64_t checksum = 0;  // of the next step, if it sends; 0: not computed yet
  };
  struct Run;  // the state of one run()

  /// TimeSplit while one thread at a time adds to it and others read it.
  struct Totals {
    std::atomic<std::uint64_t> total_ns{0};
    std::atomic<std::uint64_t> bridge_ns{0};
    std::atomic<std::uint64_t> operations{0};
    std::atomic<std::uint64_t> bytes_inside{0};
    std::atomic<std::uint64_t> bytes_bridge{0};
    std::atomic<std::uint64_t> bytes_lent{0};
  };

  bool try_step(Run& run, const Step& step, LaneState& lane);
  bool try_send(Run& run, const Step& step, LaneState& lane);
  bool try_pass(const Run& run, const Step& step, transport::FrameHeader& header, std::span<const std::byte> payload);
  bool try_receive(Run& run, const Step& step);
  bool try_reduce(Run& run, const Step& step);
  bool fold_sources(const Run& run, const Step& step);
  bool claim_results(const Run& run, const Step& step);
  void release_results(const Step& step, std::span<const Source> sources) noexcept;
  void copy_result(const Step& step, std::byte* to, const std::byte* from);
  const transport::Frame* expect(Run& run, int peer, const Step& step);
  const transport::Frame* next_frame(int peer, Flow flow, const Run& run);
  bool is_ahead(Run& run, int peer, const transport::FrameHeader& header);
  void check_ended(const Run& run) const;
  void check_payload(const Step& step, int peer, std::uint64_t stated, std::uint64_t found) const;
  void check_last_result(int peer, std::uint64_t theirs) const;
  void remember_result(const Run& run);
  void prepare(Run& run);
  bool advance_lanes(Run& run);
  void wait(Run& run, transport::Sleeper& sleeper);
  void open_flows(int peer);
  void check_left(Run& run);
  Stall stall_of(const Run& run);
  void check_leftovers(const Run& run);
  void run_lanes(Run& run);
  void find_lendable(const Run& run);
  const transport::ArenaPlace* lendable(const Range& range) const;
  bool has_returned(int peer, Flow flow) const;
  bool have_returned(const Run& run) const;
  bool is_for_result(const Run& run, const Step& step) const;
  void end_loans(const Run& run) noexcept;
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
  FoldThreads& threads_;
  StallObserver& stalls_;
  const bool check_data_;
  Checksum result_;
  std::uint64_t last_result_ = 0;  // checksum of the last operation's result that all ranks share; 0: none
  std::string last_name_;
  std::vector<transport::Channel*> channels_;
  std::vector<bool> results_wait_;                                 // by peer: a result is waiting for credit
  std::vector<std::optional<transport::ArenaPlace>> lendable_[2];  // input and output: segments in the arena
  bool has_lent_ = false;                                          // in the current operation
  bool has_lent_for_result_ = false;                               // likewise
  std::vector<std::byte*> results_;                                // in peers' memory, of the current step
  std::vector<std::uint64_t> written_;  // by peer: 1 + position of the last result written there; 0: none
  std::vector<LaneState> lanes_;
  std::vector<std::uint32_t> open_lanes_;
  std::vector<const std::byte*> sources_;
  std::vector<int> awaited_;  // peers of the stall that is being reported
  std::vector<std::byte> scratch_;
  std::unique_ptr<std::atomic<bool>[]> left_;
  std::atomic<bool> any_left_{false};
  Totals split_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> sent_bytes_;  // by peer; one thread at a time adds to it
};

}  // namespace atl::collectives
