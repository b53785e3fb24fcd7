// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/pytorch/inner/piece.h"

namespace atl::pytorch {

/// The way of one group's operations from one device to the bridge and back. Pieces pass in the order in which they enter, each
/// through one of a few slots of host memory: while one crosses the bridge, the next ones come from the device and earlier
/// ones go back. Which piece may load depends on the order alone and not on the clock, so the ranks of an island use their
/// library in the same order. Thread-safe.
class Passage {
 public:
  /// A piece in the passage.
  struct Entry {
    std::unique_ptr<Piece> piece;
    std::exception_ptr error;  // of loading
    bool is_issued = false;    // its way to the host
    bool has_crossed = false;
    bool is_storing = false;
    std::function<void(const std::exception_ptr&)> stored;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  /// At most `budget_bytes` of host memory stay in use (two slots at least); a single larger piece gets its own for its
  /// time. `clock` times the copies of pieces.
  Passage(c10::Device device, std::uint64_t budget_bytes, std::shared_ptr<StagingClock> clock);

  /// Its own, none for the CPU: groups that shared them would wait for each other's libraries, in an order that ranks need not
  /// share.
  const std::shared_ptr<const CopyStreams>& streams() const noexcept { return streams_; }

  /// Appends a piece; it loads as soon as slots are free. `stored` is called once when its way back has been issued, with
  /// nullptr or what went wrong.
  EntryPtr enter(const std::shared_ptr<Trip>& trip, const Surroundings& around, const collectives::Call& call,
                 std::function<void(const std::exception_ptr&)> stored);

  /// Issues the way to the host of entered pieces.
  void load();

  /// Whether the piece's call may run; asked by the thread that is to run it. Throws what loading has thrown.
  bool is_loaded(Entry& entry);

  /// The first `end` bytes of an output have crossed: asked of a piece that comes in parts, before crossed().
  void arrived(const EntryPtr& entry, std::uint32_t segment, std::uint64_t end);

  /// The piece's call has run. Pieces go back in order; those that were waiting for this one do too.
  void crossed(const EntryPtr& entry);

  /// Waits until all that have entered are stored. False: not by then, or `is_in_vain` has become true, which is asked for
  /// now and then.
  bool drain(Deadline deadline, const std::function<bool()>& is_in_vain);

  /// The group has ended: lets go of all pieces. Those that have crossed or still do are "stored" with an error.
  void close();

 private:
  void store_front(std::unique_lock<std::mutex>& lock);
  static void finish(Entry& entry, const std::exception_ptr& error);

  const c10::Device device_;
  const std::shared_ptr<const CopyStreams> streams_;
  const std::shared_ptr<StagingClock> clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::deque<EntryPtr> entries_;  // not stored yet, in order
  std::uint64_t first_ = 0;       // number of the front
  std::size_t loaded_ = 0;        // of entries_, from the front; the last of them may be under way
  bool is_loading_ = false;
  bool is_storing_ = false;
  bool is_closed_ = false;
};

}  // namespace atl::pytorch
