// SPDX-License-Identifier: Apache-2.0
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
#include "atoll/collectives/library_step.h"
#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/collectives/schedule/schedule.h"
#include "atoll/collectives/types.h"
#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/store.h"

namespace atl::collectives {

/// What becomes of a NaN or an infinity in the input of a reduction.
enum class ValueCheck : std::uint8_t { kNone, kWarn, kRaise };

struct GroupOptions {
  int rank = 0;
  int size = 1;
  std::string name;            ///< unique in the job; prefix of the store keys; equal on all members
  std::string island;          ///< this rank's island label
  std::string device = "cpu";  ///< type of the device this rank computes on
  std::string library;         ///< that can reduce inside this rank's island; "": none but Atoll
  std::string problem;         ///< why this rank cannot take part: told to all, and nobody does
  double uplink = 0;           ///< ATOLL_UPLINK: relative rate of this rank's way to other islands; 0: not stated
  std::chrono::milliseconds timeout{30 * 60 * 1000};  ///< default of every operation
  bool flat_reduce = false;                           ///< ATOLL_REDUCE=flat; must be equal on all ranks
  bool check_data = false;                            ///< ATOLL_CHECK_DATA; must be equal on all ranks
  ValueCheck check_values = ValueCheck::kNone;        ///< ATOLL_CHECK_VALUES; likewise
  std::chrono::milliseconds slow_after{20000};        ///< ATOLL_SLOW_AFTER: waiting so long is reported; 0: never
  std::size_t events = 256;                           ///< ATOLL_TRACE_EVENTS: operations that are remembered
  std::string trace_folder;  ///< ATOLL_TRACE_DIR: where they are written in the end; "": nowhere
};

/// By so much the end of a group waits for calls that were issued, and as long again for messages.
inline constexpr std::chrono::seconds kMaxDrain{10};

/// One rank's part of a process group. Collectives of a group run one after another in the order in which this rank issues
/// them, which must be the same on all ranks; messages run beside them. All functions are thread-safe. After the first error the
/// group is finished: every pending and later operation fails with that error. Only an operation that a rank has refused before
/// it sent anything ends alone, with kMismatch on the others.
class Group {
 public:
  /// Meets the other members through `store` in O(log size) round trips; opens no links. Throws Error(kTimeout) that names the
  /// missing ranks, Error(kMismatch) when members disagree about size, wire version or options.
  Group(std::shared_ptr<Context> context, Store& store, const GroupOptions& options);

  /// abort() if the group was not shut down. In a forked child it does nothing, and frees nothing.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  const GroupOptions& options() const noexcept;
  const Topology& topology() const noexcept;

  /// Runs the collective on the calling thread when nothing is queued, else queues it and waits. Throws the error.
  void run(const Call& call);

  /// Queues the collective; `done` is called on the group's worker thread.
  void submit(Call call, Completion done);

  /// Point-to-point messages; never block in the order of issue. `tag` is matched; messages between a pair with equal tags arrive in
  /// order. Sizes and dtypes must agree, or the receive is a kMismatch error.
  void send(int destination, std::uint64_t tag, DataType dtype, std::span<const std::byte> data,
            std::optional<std::chrono::milliseconds> timeout, Completion done);
  void receive(int source_or_any, std::uint64_t tag, DataType dtype, std::span<std::byte> data,
               std::optional<std::chrono::milliseconds> timeout, ReceiveCompletion done);

  /// The same from where the bytes still have to come, and to memory of a device: a receive of `bytes` takes a message however
  /// it comes.
  void send_from(const MessageOrigin& origin, int destination, std::uint64_t tag, DataType dtype,
                 std::span<const std::byte> data, std::optional<std::chrono::milliseconds> timeout, Completion done);
  void receive(int source_or_any, std::uint64_t tag, DataType dtype, std::uint64_t bytes,
               std::shared_ptr<Landing> landing, std::optional<std::chrono::milliseconds> timeout,
               ReceiveCompletion done);

  /// More of what is being sent has been loaded.
  void note_loaded();

  /// Where a message of `bytes` to `destination` can go from device to device; nullptr: it cannot, or not yet.
  transport::DirectPort* direct_port(int destination, std::uint64_t bytes) const;

  void barrier(std::optional<std::chrono::milliseconds> timeout = {});

  /// Rank 0 learns who came and throws Error(kTimeout) naming the first missing rank (all of them when `wait_all_ranks`); the others throw too.
  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks);

  /// Number of the next operation.
  std::uint64_t sequence() const noexcept;

  /// This rank cannot take part in its next operation, of which nothing has been issued: the operation ends on the other ranks
  /// with an error that names this rank and says `why`, and all go on with the one after it.
  void refuse(const std::string& why);

  /// Takes the next operation's number for something that cannot be taken back, such as a call of the island's library: from now on
  /// a refusal of it ends the group. Throws where it has been refused already.
  std::uint64_t commit();

  /// The same for messages, which keep their order: the peer's receive of this message, or its send, ends with an error.
  void refuse_send(int destination, std::uint64_t tag, const std::string& why);
  void refuse_receive(int source_or_any, std::uint64_t tag, const std::string& why);

  /// The same for messages that a library inside the island takes from one rank to the other, in the order of their issue: commit
  /// each end before it is issued; the number counts those of this pair and direction. A refused message whose other end has begun
  /// ends the group there.
  std::uint64_t commit_message(int peer, bool sends);
  void refuse_committed_message(int peer, bool sends, const std::string& why);

  /// This rank is ready for a step of its island's library, in an island beside others: see island_order.h.
  void request_step(StepRequest request);

  /// This rank will not request this kOutAfterIn.
  void give_up_step(const LibraryStep& step);

  /// To be called once before the first request, on all ranks of the island.
  void open_island_order();

  void set_timeout(std::chrono::milliseconds timeout);

  /// Any thread: fails every pending and later operation on this rank with kAborted and tells the other ranks. Needs no peer.
  void abort(const std::string& reason) noexcept;

  /// The same for any error that somebody else than the group has met on its behalf.
  void fail(const Error& error) noexcept;

  /// Calls `listener` once, on any thread, when the group has failed; at once if it has. It must not block.
  void when_failed(std::function<void()> listener);

  /// Opens the link to `peer`, so that its end is noticed also when no operation of this group waits for it.
  void watch(int peer);

  /// Waits (kMaxDrain at most) for queued work, then closes. Peers that still need this rank see an error.
  void shutdown();

  /// The first error, or nullptr.
  std::exception_ptr error() const noexcept;

  TimeSplit time_split() const noexcept;

  /// Payload that this rank has sent to each member in collectives, by rank. What a vendor's library sends is not in it.
  std::vector<std::uint64_t> sent_bytes() const;

  /// Messages of this rank, sent and received, that went from device to device.
  std::uint64_t direct_messages() const noexcept;

  /// Links of this group: "rank 1: shm", "rank 2: tcp 127.0.0.1:4000 -> 127.0.0.1:4001"; only those opened so far.
  std::vector<std::pair<int, std::string>> links() const;

  const ScheduleLimits& limits() const noexcept;

  /// The same on all ranks, and unique among the groups of all jobs.
  std::uint64_t id() const noexcept;

  /// The schedule this rank would use.
  std::shared_ptr<const Schedule> schedule(const Shape& shape);

  /// The last operations of this rank as JSON (see docs/environment.md, ATOLL_DUMP_DIR).
  std::string dump_json() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace atl::collectives
