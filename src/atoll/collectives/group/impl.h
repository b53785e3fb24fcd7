// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "atoll/collectives/control_message.h"
#include "atoll/collectives/group/context_impl.h"
#include "atoll/collectives/group/group.h"
#include "atoll/collectives/group/island_order.h"
#include "atoll/collectives/group/rendezvous.h"
#include "atoll/collectives/group/trace.h"
#include "atoll/collectives/messages/point_to_point.h"
#include "atoll/collectives/refusals.h"
#include "atoll/collectives/roll_call.h"
#include "atoll/collectives/schedule/cache.h"
#include "atoll/collectives/schedule/executor.h"

namespace atl::collectives {

struct Group::Impl final : GroupSink, StallObserver, std::enable_shared_from_this<Group::Impl> {
  Impl(std::shared_ptr<Context> the_context, const GroupOptions& the_options, const RendezvousResult& result);
  ~Impl() override;

  // Messages that the island's library takes to or from one peer, in one direction.
  struct CarriedMessages {
    std::uint64_t next = 0;                        // number of the next message
    std::map<std::uint64_t, std::string> refused;  // refused by the peer, and not committed here yet
    std::set<std::uint64_t> refused_here;
  };

  // A collective that has its number and its place in the order.
  struct Pending {
    Call call;
    Signature signature;
    Deadline deadline;
    EventRing::Ticket ticket;
    Completion done;
  };

  /// Throws Error(kInvalidArgument) unless this rank can send a message to `peer`, or receive one from it.
  void check_peer(bool sends, int peer) const;
  void run(const Call& call);
  void submit(Call call, Completion done);
  void await_input(const Call& call, const Signature& signature, Deadline deadline);
  std::vector<int> ranks_providing_input(const Call& call);
  /// Runs the call; returns its error, or nullptr.
  std::exception_ptr execute(const Call& call, const Signature& signature, Deadline deadline, EventRing::Ticket ticket);
  /// Warns of, or throws for, the first non-finite value in a reduction's input.
  void check_values(const Call& call, const Signature& signature);
  std::pair<Signature, EventRing::Ticket> begin(const Call& call);
  /// Returns nothing if the call has not been issued yet, or was issued long ago.
  std::optional<IssuedCall> find_issued(std::uint64_t sequence) const;
  void refuse(const std::string& why);
  std::uint64_t commit();
  /// Handles a rank's refusal of an operation: ends the operation here, and forwards the refusal.
  void on_refusal(std::uint64_t number, const Refusal& refusal);
  void forward_refusal(std::uint64_t number, const Refusal& refusal) noexcept;
  std::uint64_t commit_message(int peer, bool sends);
  void refuse_committed_message(int peer, bool sends, const std::string& why);
  void on_withdrawal(int peer, const WithdrawalMessage& message);
  IslandOrder::Hooks island_order_hooks();
  /// Sends an inquiry to the other ranks of the island: whether one has refused the collective of this sequence, or
  /// called another one.
  void query_island(std::uint64_t sequence);
  void check_schedule(const Shape& shape) const;
  void work();
  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks);
  void collect_check_ins(std::uint64_t tag, std::chrono::milliseconds timeout, bool wait_all_ranks);

  /// Ends the group with its first error: keeps it, dumps it, sends it to the peers and wakes every waiter.
  void fail(const Error& error) noexcept;
  void notify_peers(ControlType type, const Error& error) noexcept;
  Report report_of(const Error& error) const { return {error.kind(), options.rank, error.what()}; }
  /// Sends an inquiry to a peer that this rank waits for: whether it has called the same collective, has failed or has
  /// left. The reply is a report.
  void send_inquiry(int peer, bool about_collective);
  void answer_inquiry(transport::Link& link, int from, std::span<const std::byte> message);
  /// Sends `link`'s peer this rank's progress in the collective, and what it knows of the other ranks.
  void call_roll(transport::Link& link, std::uint64_t sequence, bool wants_reply);
  void answer_roll_call(transport::Link& link, std::span<const std::byte> message);
  RankProgress progress_in(std::uint64_t sequence) const;
  void on_stall(const Stall& stall) override;
  void on_stall_over(const Stall& stall) override;
  void on_peer_ahead(int peer) override { send_inquiry(peer, /*about_collective=*/true); }
  std::string explain(const Stall& stall) override { return roll_call.explain(stall, Clock::now()); }
  /// Returns the group's error for `signature`, with the operation's name if the error itself names none.
  std::exception_ptr failure_of(const Signature& signature, std::uint64_t count) const;
  void shutdown();
  /// Starts the worker, under the lock, before a call is queued. Throws Error(kUnavailable) if the system cannot start
  /// a thread.
  void start_worker();
  void stop_threads();

  void on_control(transport::Link& link, std::span<const std::byte> message) override;
  /// Marks that `peer` has left in good order: nothing more comes from it.
  void mark_left(int peer);
  void on_link_failed(const transport::PeerId& peer, const Error& error, bool closed_in_order) override;
  void on_dump_requested() override { write_dump(dump_folder(), "SIGUSR1"); }
  std::string dump_json() const;
  std::string dump_folder() const;
  void write_dump(const std::string& folder, const char* why) const noexcept;
  void write_trace() noexcept;

  /// If a trace is to be written: compares clocks with the group's first rank now and then, on the loop.
  void watch_clock();
  void request_time_on_loop();
  void stop_clock_on_loop();
  void on_clock_message(transport::Link& link, int from, std::span<const std::byte> message);

  std::chrono::milliseconds timeout_or_default(std::optional<std::chrono::milliseconds> timeout) const {
    return timeout.value_or(default_timeout.load());
  }

  const std::uint32_t process;  // fork_depth() of the process whose threads these are
  const std::shared_ptr<Context> context;
  const GroupOptions options;
  const std::uint32_t attempt;
  const Topology topology;
  const ScheduleLimits limits;
  std::atomic<std::chrono::milliseconds> default_timeout;

  mutable std::mutex clock_mutex;
  ClockSamples clock_samples;  // guarded by clock_mutex
  int clock_requests = 0;      // used on the loop only
  std::optional<Loop::TimerId> clock_timer;
  std::atomic<bool> trace_is_written{false};

  Failure failure;
  Refusals refusals;
  EventRing events;
  ScheduleCache schedules;
  PeerPorts ports;
  IslandOrder island_order;
  RollCall roll_call;
  Executor executor;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Pending> queue;
  std::atomic<std::uint64_t> next_number{0};               // of operations; changed under the mutex
  std::array<std::optional<std::uint64_t>, 64> committed;  // the last ones, by number
  std::uint64_t next_barrier_tag = 0;
  std::map<std::pair<int, bool>, CarriedMessages> carried;  // by peer and whether this rank sends
  bool busy = false;                                        // a thread is executing
  bool warned_of_values = false;  // used on the executing thread only: the last reduction had a non-finite input
  bool stopping = false;
  bool is_shut_down = false;
  std::vector<std::function<void()>> failure_listeners;
  Signature current;
  Shape shape;  // used on the executing thread; kept so that building a key allocates nothing
  std::byte barrier_byte{0};
  std::thread worker;
  PointToPoint messages;  // destroyed first: its thread may report a failure, which uses the members above
};

/// Throws Error(kInvalidArgument) unless the call's segments, root, dtype and reduction fit the operation in a group of
/// `size` ranks.
void check_call(const Call& call, int rank, int size);

/// Fills `shape` from the call's segments.
void shape_of(const Call& call, int rank, int size, Shape& shape);

}  // namespace atl::collectives
