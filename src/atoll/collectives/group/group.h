// SPDX-License-Identifier: Apache-2.0
//
// The promises of groups, each proven by the tests that docs/promises.md names:
// C-1: Each element of a result is computed once, by its owner, and copied, so that all ranks hold the same bits.
// C-2: The same topology, shape and dtype give the same bits in every run; with ATOLL_REDUCE=flat, on every layout too.
// C-3: One reduction adds half and fp8 types in float32 and rounds the result once.
// C-4: When ranks call different operations, every rank gets an error that names the operation and the difference.
// C-5: The death of a rank is an exception on every other rank within 2 s, and the exception names the dead rank.
// C-6: abort() on any thread wakes every waiter of the group on every rank, with the reason that was given.
// C-7: Every wait ends by its timeout, and the error names the ranks that are missing.
// C-8: A call that a rank refuses before it has sent anything ends on all ranks with the reason, and the group
//   continues.
// C-9: Every completion is called exactly once, with an error if the group fails first.
// C-10: Messages never block each other, whatever the order of issue, and messages with equal tags arrive in order.
// C-11: What a peer reads in a rank's arena after the rank's operation has ended in an error is not used, and from then
//   on it cannot write there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/collectives/group/context.h"
#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/collectives/schedule/schedule.h"
#include "atoll/collectives/types.h"
#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/store.h"

namespace atl::collectives {

/// What to do about a NaN or an infinity in the input of a reduction.
enum class ValueCheck : std::uint8_t { kNone, kWarn, kRaise };

struct GroupOptions {
  int rank = 0;
  int size = 1;
  std::string name;            ///< unique in the job; prefix of the store keys; equal on all members
  std::string island;          ///< this rank's island label
  std::string device = "cpu";  ///< type of the device this rank computes on
  std::string library;         ///< the library that can reduce inside this rank's island; "": only Atoll can
  std::string problem;         ///< why this rank cannot take part: sent to all ranks, and the group is not made
  double uplink = 0;           ///< ATOLL_UPLINK: relative rate of this rank's way to other islands; 0: not stated
  std::chrono::milliseconds timeout{30 * 60 * 1000};  ///< default of every operation
  bool flat_reduce = false;                           ///< ATOLL_REDUCE=flat; must be equal on all ranks
  bool check_data = false;                            ///< ATOLL_CHECK_DATA; must be equal on all ranks
  ValueCheck check_values = ValueCheck::kNone;        ///< ATOLL_CHECK_VALUES; likewise
  std::chrono::milliseconds slow_after{20000};        ///< ATOLL_SLOW_AFTER: a longer wait is reported; 0: never
  std::size_t fold_threads = 0;                       ///< ATOLL_FOLD_THREADS, of the process; 0: by cores and ranks
  std::size_t events = 256;                           ///< ATOLL_TRACE_EVENTS: number of operations kept
  std::string trace_folder;              ///< ATOLL_TRACE_DIR: the folder they are written to at the end; "": none
  std::function<void()> prepare_thread;  ///< if set, called first by each thread that runs calls' functions
};

/// The longest time that shutdown waits for issued collectives, and the same again for messages.
inline constexpr std::chrono::seconds kMaxDrain{10};

/// One rank's part of a process group. The collectives of a group run one after another in the order in which this rank
/// issues them, which must be the same on all ranks; messages run concurrently with them. All functions are
/// thread-safe. The first error ends the group: every pending and later operation fails with that error. The exception
/// is an operation that a rank refuses before it has sent anything: only that operation ends, with kMismatch on the
/// other ranks.
class Group {
 public:
  /// Finds the other members through `store` in O(log size) round trips; opens no links. Throws Error(kTimeout) that
  /// names the missing ranks, or Error(kMismatch) if members disagree about size, wire version or options.
  Group(std::shared_ptr<Context> context, Store& store, const GroupOptions& options);

  /// Calls abort() if the group was not shut down. In a forked child it does nothing, and frees nothing.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  const GroupOptions& options() const noexcept;
  const Topology& topology() const noexcept;

  /// Runs the collective on the calling thread if nothing is queued; otherwise queues it and waits. Throws its error.
  void run(const Call& call);

  /// Queues the collective; `done` is called on the group's worker thread.
  void submit(Call call, Completion done);

  /// Point-to-point messages. They never block each other, whatever the order of issue. Tags are matched, and messages
  /// between two ranks with equal tags arrive in order. If sizes or dtypes differ, the receive fails with kMismatch.
  /// `origin`: of data on a device, or whose bytes are still being loaded.
  void send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data,
            std::optional<std::chrono::milliseconds> timeout, Completion done, const MessageOrigin& origin = {});
  void receive(int source_or_any, std::uint64_t tag, DataType dtype, std::span<std::byte> data,
               std::optional<std::chrono::milliseconds> timeout, ReceiveCompletion done);

  /// The same for a destination in device memory. It accepts a message of `bytes` whichever way it is sent.
  void receive(int source_or_any, std::uint64_t tag, DataType dtype, std::uint64_t bytes,
               std::shared_ptr<Landing> landing, std::optional<std::chrono::milliseconds> timeout,
               ReceiveCompletion done);

  /// Signals that more bytes of a message being sent have been loaded.
  void note_loaded();

  /// Returns the port through which a message of `bytes` can go to `destination` from device to device; nullptr if it
  /// cannot, or not yet.
  transport::DirectPort* direct_port(int destination, std::uint64_t bytes) const;

  void barrier(std::optional<std::chrono::milliseconds> timeout = {});

  /// A barrier in which rank 0 throws Error(kTimeout) that names the first missing rank (all missing ranks if
  /// `wait_all_ranks`); the other ranks throw too.
  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks);

  /// Returns the number of the next operation.
  std::uint64_t sequence() const noexcept;

  /// Refuses this rank's next operation, of which nothing has been issued: the operation ends on the other ranks with
  /// an error that names this rank and gives `why`, and all ranks continue with the one after it.
  void refuse(const std::string& why);

  /// Takes the next operation's number for work that cannot be undone, such as a call of the island's library: from now
  /// on a refusal of that operation ends the group. Throws if it has been refused already.
  std::uint64_t commit();

  /// The same for messages, which keep their order: the peer's receive, or send, of this message ends with an error.
  void refuse_send(int destination, std::uint64_t tag, const std::string& why);
  void refuse_receive(int source_or_any, std::uint64_t tag, const std::string& why);

  /// The same for messages that a library carries inside the island, in the order of issue: commit each end before it
  /// is issued. The number counts the messages of this peer and direction. If the other end of a refused message has
  /// already started, the group ends there.
  std::uint64_t commit_message(int peer, bool sends);
  void refuse_committed_message(int peer, bool sends, const std::string& why);

  /// Requests a step of the island's library, for which this rank is ready; for groups of several islands. See
  /// island_order.h.
  void request_step(StepRequest request);

  /// States that this rank will not request this kOutAfterIn.
  void give_up_step(const LibraryStep& step);

  /// Must be called once, before the first request, on all ranks of the island.
  void open_island_order();

  void set_timeout(std::chrono::milliseconds timeout);

  /// Fails every pending and later operation on this rank with kAborted, and notifies the other ranks. May be called on
  /// any thread; needs no reply of a peer.
  void abort(const std::string& reason) noexcept;

  /// The same for an error that occurred outside the group, on its behalf.
  void fail(const Error& error) noexcept;

  /// Calls `listener` once, on any thread, when the group has failed; at once if it has failed already. It must not
  /// block.
  void when_failed(std::function<void()> listener);

  /// Opens the link to `peer`, so that the end of that process is noticed even if no operation of this group waits for
  /// it.
  void watch(int peer);

  /// Waits (at most kMaxDrain) for queued work, then closes. Peers that still need this rank get an error.
  void shutdown();

  /// Returns the first error, or nullptr.
  std::exception_ptr error() const noexcept;

  TimeSplit time_split() const noexcept;

  /// Returns the payload bytes that this rank has sent to each member in collectives, by rank; not what a vendor's
  /// library sends.
  std::vector<std::uint64_t> sent_bytes() const;

  /// Returns the number of messages, sent and received, that went from device to device.
  std::uint64_t direct_messages() const noexcept;

  /// Returns the links that this group has opened so far: "rank 1: shm", "rank 2: tcp 127.0.0.1:4000 ->
  /// 127.0.0.1:4001".
  std::vector<std::pair<int, std::string>> links() const;

  /// Returns whether another member runs on this host and can read what lies in this process's arena.
  bool can_lend() const noexcept;

  const ScheduleLimits& limits() const noexcept;

  /// Returns the group's id: equal on all ranks, and unique among the groups of all jobs.
  std::uint64_t id() const noexcept;

  /// Returns the schedule that this rank would use.
  std::shared_ptr<const Schedule> schedule(const Shape& shape);

  /// Returns the last operations of this rank as JSON (see docs/environment.md, ATOLL_DUMP_DIR).
  std::string dump_json() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace atl::collectives
