// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/passage.h"

#include <algorithm>
#include <iterator>

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

std::exception_ptr load_one(Piece& piece) noexcept {
  try {
    piece.load();
    return nullptr;
  } catch (const Error&) {
    return std::current_exception();
  } catch (const std::exception& error) {
    return std::make_exception_ptr(
        Error(ErrorKind::kUnavailable, "bringing a tensor to the host failed: " + plain_text(error)));
  }
}

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
  Slot& slot = slots_[(first_ + entries_.size()) % slots_.size()];
  if (!slot.memory.defined()) slot.memory = pinned_memory(kSlotBytes, device_);
  entry->piece = std::make_unique<Piece>(trip, around, call, &slot, clock_);
  entry->stored = std::move(stored);
  entries_.push_back(entry);
  return entry;
}

void Passage::load() {
  std::unique_lock lock(mutex_);
  load_more(lock);
}

// One thread at a time, which goes on with what others have entered meanwhile. A device or a library may keep it waiting for
// other ranks, and these for operations that are on their way: so they are on their way without it.
void Passage::load_more(std::unique_lock<std::mutex>& lock) {
  if (is_loading_) return;
  is_loading_ = true;
  while (loaded_ < std::min(entries_.size(), slots_.size())) {
    const EntryPtr entry = entries_[loaded_++];
    lock.unlock();
    const std::exception_ptr failure = load_one(*entry->piece);
    lock.lock();
    entry->error = failure;
    entry->is_issued = true;
  }
  is_loading_ = false;
}

bool Passage::is_loaded(Entry& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (entry.error) std::rethrow_exception(entry.error);
    if (!entry.is_issued || !entry.piece) return false;
  }
  return entry.piece->is_loaded();
}

void Passage::crossed(const EntryPtr& entry) {
  std::vector<std::pair<EntryPtr, std::exception_ptr>> done;
  {
    std::unique_lock lock(mutex_);
    entry->has_crossed = true;
    if (is_closed_) done.emplace_back(entry, closed());
    while (!is_closed_ && !entries_.empty() && entries_.front()->has_crossed) {
      std::exception_ptr error;
      try {
        entries_.front()->piece->store();
      } catch (...) {
        error = std::current_exception();
      }
      done.emplace_back(std::move(entries_.front()), error);
      entries_.pop_front();
      ++first_;
      --loaded_;
    }
    load_more(lock);
  }
  for (auto& [each, error] : done) {
    each->piece.reset();
    each->stored(error);
  }
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
                 [](const EntryPtr& entry) { return entry->has_crossed; });
  }
  for (const EntryPtr& entry : behind) {
    entry->piece.reset();
    entry->stored(closed());
  }
}

}  // namespace atl::pytorch
