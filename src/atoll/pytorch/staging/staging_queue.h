// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/collectives/call.h"
#include "atoll/core/deadline.h"
#include "atoll/pytorch/staging/issuer.h"
#include "atoll/pytorch/staging/staged_chunk.h"

namespace atl::pytorch {

/// The turns of an island's library, in the one order of all ranks of the island (collectives/group/island_order.h).
struct LibraryTurns {
  /// Calls `go` once, on any thread: with nullptr when the step may begin, else with the group's error, such as that
  /// the step's turn did not come within `limit`.
  std::function<void(const collectives::LibraryStep& step, std::chrono::milliseconds limit,
                     std::function<void(const std::exception_ptr& error)> go)>
      request;
  /// Tells the other ranks that this one will not request the step, a kOutAfterIn.
  std::function<void(const collectives::LibraryStep& step)> give_up;
};

/// Carries one group's operations from one device to the bridge and back. Chunks pass in the order in which they were
/// enqueued, each through one of a few slots of host memory: while one crosses the bridge, later ones are copied from
/// the device and earlier ones back to it. Steps of the island's library are issued in their turn. Thread-safe.
class StagingQueue : public std::enable_shared_from_this<StagingQueue> {
 public:
  /// A chunk in the queue.
  struct Entry {
    std::unique_ptr<StagedChunk> chunk;
    std::optional<std::uint64_t> sequence;  // of its call, if the library takes part
    LibraryParts parts;
    collectives::LibraryStep step(bool goes_back) const;  ///< of the library, in a direction that has one
    std::chrono::milliseconds limit{};                    // of each step of the library
    std::exception_ptr error;                             // of loading, or of its turn to go back
    bool is_loading = false;
    bool is_issued = false;  // the copy to the host
    bool has_crossed = false;
    bool is_given_up = false;          // its call alone failed, and its operation has the error
    bool has_requested_store = false;  // its turn has been requested
    bool may_store = false;
    bool is_storing = false;
    std::function<void(const std::exception_ptr&)> stored;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  /// Allocates `bytes` of host memory for the device's copies.
  using Allocate = std::function<at::Tensor(std::uint64_t bytes, c10::Device device)>;

  /// Keeps at most `budget_bytes` of host memory (two slots at least) from `allocate`; a larger chunk allocates its own
  /// until it is stored. `clock` times the copies. `turns` are those of the island's library. Everything that is issued
  /// here is pushed to `issuer`, which other queues and messages may share.
  StagingQueue(c10::Device device, std::uint64_t budget_bytes, Allocate allocate, std::shared_ptr<StagingClock> clock,
               std::shared_ptr<Issuer> issuer, LibraryTurns turns);

  /// Frees the host memory once the device's copies have left it; keeps it forever if they do not end soon, because the
  /// device may still write there.
  ~StagingQueue();
  StagingQueue(const StagingQueue&) = delete;
  StagingQueue& operator=(const StagingQueue&) = delete;

  /// Streams of this queue alone; null for the CPU. Groups that shared streams would wait for each other's libraries,
  /// in an order that may differ between ranks.
  const std::shared_ptr<const CopyStreams>& streams() const noexcept { return streams_; }

  /// Appends a chunk, which loads as soon as a slot is free and its turn has come. `sequence`: of its call, if
  /// `context` has a library. `stored` is called once, with nullptr or the error, when the copy back has been issued.
  /// Then call load().
  EntryPtr enqueue(const std::shared_ptr<StagedOperation>& operation, const StagingContext& context,
                   const collectives::Call& call, std::optional<std::uint64_t> sequence,
                   std::function<void(const std::exception_ptr&)> stored);

  /// Issues the copies to the host of the chunks whose turn has come; the others follow without a further call. May
  /// block.
  void load();

  /// Returns whether the chunk's call may run. Called by the thread that is to run it. Throws what loading has thrown.
  bool is_loaded(Entry& entry);

  /// Notes that the first `end` bytes of an output have crossed, of a chunk that comes in parts. Called before
  /// crossed().
  void arrived(const EntryPtr& entry, std::uint32_t segment, std::uint64_t end);

  /// Notes that the chunk's call has run. Chunks go back in order, so this releases those that waited for this one.
  /// Does not block: the caller runs the issuer afterwards.
  void crossed(const EntryPtr& entry);

  /// Notes that the chunk's call failed with an error that did not end the group. Nothing goes back, and `stored` is
  /// not called.
  void give_up(const EntryPtr& entry);

  /// Waits until all chunks are stored. Returns false at the deadline, or once `has_failed` returns true, which is
  /// polled.
  bool drain(Deadline deadline, const std::function<bool()>& has_failed);

  /// Releases all chunks, because the group has ended. `stored` of those that have crossed or are crossing gets an
  /// error.
  void close();

 private:
  void grant_slots(std::unique_lock<std::mutex>& lock);
  void request_stores(std::unique_lock<std::mutex>& lock);
  void load_entry(const EntryPtr& entry, const std::exception_ptr& turn);
  void store_through(const EntryPtr& entry, const std::exception_ptr& turn);
  void store_front(std::unique_lock<std::mutex>& lock);
  void mark_crossed(const EntryPtr& entry);
  static void finish(Entry& entry, const std::exception_ptr& error);

  const c10::Device device_;
  const Allocate allocate_;
  const std::shared_ptr<const CopyStreams> streams_;
  const std::shared_ptr<StagingClock> clock_;
  const std::shared_ptr<Issuer> issuer_;
  const LibraryTurns turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::deque<EntryPtr> entries_;  // not stored yet, in order
  std::uint64_t first_ = 0;       // the number of the front entry
  std::size_t admitted_ = 0;      // entries from the front that have slots and load in their turn
  bool is_closed_ = false;
};

}  // namespace atl::pytorch
