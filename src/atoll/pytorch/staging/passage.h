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

#include "atoll/collectives/library_step.h"
#include "atoll/core/deadline.h"
#include "atoll/pytorch/staging/issuer.h"
#include "atoll/pytorch/staging/piece.h"

namespace atl::pytorch {

/// The turns of an island's library, in the one order of all ranks of the island (collectives/group/island_order.h).
struct LibraryTurns {
  /// Calls `go` once, on any thread: with nullptr when the step may begin, or with the error that the group has met, if only that
  /// the step's turn did not come within `limit`.
  std::function<void(const collectives::LibraryStep& step, std::chrono::milliseconds limit,
                     std::function<void(const std::exception_ptr& error)> go)>
      ask;
  /// This rank will not ask for the step, a kOutAfterIn.
  std::function<void(const collectives::LibraryStep& step)> give_up;
};

/// The way of one group's operations from one device to the bridge and back. Pieces pass in the order in which they enter, each
/// through one of a few slots of host memory: while one crosses the bridge, the next ones come from the device and earlier
/// ones go back. Steps of the island's library are issued in their turn. Thread-safe.
class Passage : public std::enable_shared_from_this<Passage> {
 public:
  /// A piece in the passage.
  struct Entry {
    std::unique_ptr<Piece> piece;
    std::optional<std::uint64_t> sequence;  // of its call, where the library takes part
    LibraryParts parts;
    collectives::LibraryStep step(bool goes_back) const;  ///< of the library, in a direction where it has one
    std::chrono::milliseconds limit{};                    // of each step of the library
    std::exception_ptr error;                             // of loading, or of its turn to go back
    bool is_loading = false;
    bool is_issued = false;  // its way to the host
    bool has_crossed = false;
    bool is_given_up = false;     // its call has ended alone, with an error that its operation knows of
    bool waits_to_store = false;  // its turn has been asked for
    bool may_store = false;
    bool is_storing = false;
    std::function<void(const std::exception_ptr&)> stored;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  /// At most `budget_bytes` of host memory stay in use (two slots at least); a single larger piece gets its own for its
  /// time. `clock` times the copies of pieces. `turns` are of the island's library; its steps are pushed to `issuer`, where other
  /// passages' and messages' may be too, and everything else that is issued here.
  Passage(c10::Device device, std::uint64_t budget_bytes, std::shared_ptr<StagingClock> clock,
          std::shared_ptr<Issuer> issuer, LibraryTurns turns);

  /// Its own, none for the CPU: groups that shared them would wait for each other's libraries, in an order that ranks need not
  /// share.
  const std::shared_ptr<const CopyStreams>& streams() const noexcept { return streams_; }

  /// Appends a piece; it loads as soon as slots are free and it is its turn. `sequence`: of its call, where `around` has a library.
  /// `stored` is called once when its way back has been issued, with nullptr or what went wrong. Afterwards call load().
  EntryPtr enter(const std::shared_ptr<Trip>& trip, const Surroundings& around, const collectives::Call& call,
                 std::optional<std::uint64_t> sequence, std::function<void(const std::exception_ptr&)> stored);

  /// Issues the way to the host of entered pieces whose turn it is; that of others follows by itself. May block.
  void load();

  /// Whether the piece's call may run; asked by the thread that is to run it. Throws what loading has thrown.
  bool is_loaded(Entry& entry);

  /// The first `end` bytes of an output have crossed: asked of a piece that comes in parts, before crossed().
  void arrived(const EntryPtr& entry, std::uint32_t segment, std::uint64_t end);

  /// The piece's call has run. Pieces go back in order; those that were waiting for this one do too. Does not block: what can be
  /// issued at once is left to whoever calls the issuer's run().
  void crossed(const EntryPtr& entry);

  /// The piece's call has ended with an error that did not end the group. Nothing goes back, and nobody is told of the piece.
  void give_up(const EntryPtr& entry);

  /// Waits until all that have entered are stored. False: not by then, or `is_in_vain` has become true, which is asked for
  /// now and then.
  bool drain(Deadline deadline, const std::function<bool()>& is_in_vain);

  /// The group has ended: lets go of all pieces. Those that have crossed or still do are "stored" with an error.
  void close();

 private:
  void let_in(std::unique_lock<std::mutex>& lock);
  void let_back(std::unique_lock<std::mutex>& lock);
  void load_entry(const EntryPtr& entry, const std::exception_ptr& turn);
  void store_until(const EntryPtr& entry, const std::exception_ptr& turn);
  void store_front(std::unique_lock<std::mutex>& lock);
  void leave(const EntryPtr& entry);
  static void finish(Entry& entry, const std::exception_ptr& error);

  const c10::Device device_;
  const std::shared_ptr<const CopyStreams> streams_;
  const std::shared_ptr<StagingClock> clock_;
  const std::shared_ptr<Issuer> issuer_;
  const LibraryTurns turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::deque<EntryPtr> entries_;  // not stored yet, in order
  std::uint64_t first_ = 0;       // number of the front
  std::size_t admitted_ = 0;      // of entries_, from the front: have slots, and load in their turn
  bool is_closed_ = false;
};

}  // namespace atl::pytorch
