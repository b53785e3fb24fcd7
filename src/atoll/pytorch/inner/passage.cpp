// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/passage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/pytorch/inner/pieces.h"
#include "atoll/pytorch/inner/plain_text.h"

namespace atl::pytorch {
namespace {

constexpr std::uint64_t kSlotBytes = kPieceBytes + kPieceBytes / 2;  // a piece, and an input apart from its output

std::exception_ptr closed() {
  return std::make_exception_ptr(
      Error(ErrorKind::kAborted, "the group was closed while an operation's result was on its way"));
}

/// Whoever has it does what has become possible meanwhile, too; given back in any case, with the mutex held.
class Turn {
 public:
  Turn(std::unique_lock<std::mutex>& lock, bool& is_taken) : lock_(lock), is_taken_(is_taken) { is_taken_ = true; }
  ~Turn() {
    if (!lock_.owns_lock()) lock_.lock();
    is_taken_ = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& is_taken_;
};

}  // namespace

Passage::Passage(c10::Device device, std::uint64_t budget_bytes, std::shared_ptr<StagingClock> clock)
    : device_(device),
      streams_(device.is_cpu() ? nullptr : std::make_shared<const CopyStreams>(device)),
      clock_(std::move(clock)),
      slots_(std::max<std::uint64_t>(2, budget_bytes / kSlotBytes)) {}

Passage::EntryPtr Passage::enter(const std::shared_ptr<Trip>& trip, const Surroundings& around,
                                 const collectives::Call& call, std::function<void(const std::exception_ptr&)> stored) {
  auto entry = std::make_shared<Entry>();
  const std::lock_guard lock(mutex_);
  if (is_closed_) std::rethrow_exception(closed());
  Slot& slot = slots_[(first_ + entries_.size()) % slots_.size()];
  if (!slot.memory.defined()) slot.memory = pinned_memory(kSlotBytes, device_);
  entry->piece = std::make_unique<Piece>(trip, around, call, &slot, clock_);
  entry->stored = std::move(stored);
  entries_.push_back(entry);
  return entry;
}

// To issue may block until other ranks' calls come, on the simulated device or where a queue is full. Meanwhile earlier pieces
// must cross, or those ranks would never get there: the mutex is not held, and nobody waits for who is loading.
void Passage::load() {
  std::unique_lock lock(mutex_);
  if (is_loading_) return;
  const Turn turn(lock, is_loading_);
  while (loaded_ < std::min(entries_.size(), slots_.size())) {
    const EntryPtr entry = entries_[loaded_++];
    lock.unlock();
    std::exception_ptr error;
    try {
      entry->piece->load();
    } catch (const Error&) {
      error = std::current_exception();
    } catch (const std::exception& failure) {
      error = std::make_exception_ptr(
          Error(ErrorKind::kUnavailable, "bringing a tensor to the host failed: " + plain_text(failure)));
    }
    lock.lock();
    entry->error = error;
    entry->is_issued = true;
  }
}

bool Passage::is_loaded(Entry& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (entry.error) std::rethrow_exception(entry.error);
    if (!entry.is_issued || !entry.piece) return false;
  }
  return entry.piece->is_loaded();
}

// Only behind all earlier pieces: results reach the tensors in the order of the operations.
void Passage::arrived(const EntryPtr& entry, std::uint32_t segment, std::uint64_t end) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || entries_.front() != entry) return;
  }
  entry->piece->arrived(segment, end);
}

// To store may block as loading may, so that nobody waits here either. Whoever loads next stores no more: it could wait for a rank
// that waits for what has crossed here.
void Passage::crossed(const EntryPtr& entry) {
  {
    std::unique_lock lock(mutex_);
    entry->has_crossed = true;
    if (is_closed_) {
      lock.unlock();
      return finish(*entry, closed());
    }
    if (is_storing_) return;
    const Turn turn(lock, is_storing_);
    while (!is_closed_ && !entries_.empty() && entries_.front()->has_crossed) store_front(lock);
  }
  load();
}

/// Unlocks meanwhile.
void Passage::store_front(std::unique_lock<std::mutex>& lock) {
  const EntryPtr front = entries_.front();  // keeps its slot until it is stored
  front->is_storing = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    front->piece->store();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (!is_closed_) {
    entries_.pop_front();
    ++first_;
    --loaded_;
    changed_.notify_all();
  }
  lock.unlock();
  finish(*front, error);
  lock.lock();
}

void Passage::finish(Entry& entry, const std::exception_ptr& error) {
  entry.piece.reset();
  entry.stored(error);
}

bool Passage::drain(Deadline deadline, const std::function<bool()>& is_in_vain) {
  std::unique_lock lock(mutex_);
  while (!entries_.empty() && !deadline.expired() && !is_in_vain()) {
    changed_.wait_for(lock, deadline.remaining(std::chrono::milliseconds(100)));
  }
  return entries_.empty();
}

void Passage::close() {
  std::deque<EntryPtr> rest;
  std::vector<EntryPtr> behind;  // those that have crossed, and wait for others
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    rest.swap(entries_);
    loaded_ = 0;
    std::copy_if(rest.begin(), rest.end(), std::back_inserter(behind),
                 [](const EntryPtr& entry) { return entry->has_crossed && !entry->is_storing; });
  }
  for (const EntryPtr& entry : behind) finish(*entry, closed());
}

}  // namespace atl::pytorch
