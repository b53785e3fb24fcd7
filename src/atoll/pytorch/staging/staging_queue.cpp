// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/staging_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/pytorch/staging/chunks.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {

using collectives::LibraryStep;

namespace {

constexpr std::chrono::seconds kPatienceWithCopies{5};
constexpr std::chrono::microseconds kPauseForCopies{50};
constexpr std::uint64_t kSlotBytes =
    kStagedChunkBytes + kStagedChunkBytes / 2;  // a chunk, and an input that is apart from its output

std::exception_ptr closed() {
  return std::make_exception_ptr(
      Error(ErrorKind::kAborted, "the group was closed while an operation's result was being copied back"));
}

// Waits a while for what has been issued to the streams of copies.
bool copies_have_ended(const CopyStreams& streams) noexcept {
  try {
    const auto limit = Deadline::after(kPatienceWithCopies);
    for (const c10::Stream& stream : {streams.to_host(), streams.to_device()}) {
      while (!stream.query()) {
        if (limit.expired()) return false;
        std::this_thread::sleep_for(kPauseForCopies);
      }
    }
    return true;
  } catch (const std::exception&) {  // the device has failed
    return false;
  }
}

}  // namespace

LibraryStep StagingQueue::Entry::step(bool goes_back) const {
  const auto out = parts.in ? LibraryStep::Kind::kOutAfterIn : LibraryStep::Kind::kOut;
  return {goes_back ? out : LibraryStep::Kind::kIn, -1, -1, sequence.value()};
}

StagingQueue::StagingQueue(c10::Device device, std::uint64_t budget_bytes, Allocate allocate,
                           std::shared_ptr<StagingClock> clock, std::shared_ptr<Issuer> issuer, LibraryTurns turns)
    : device_(device),
      allocate_(std::move(allocate)),
      streams_(device.is_cpu() ? nullptr : std::make_shared<const CopyStreams>(device)),
      clock_(std::move(clock)),
      issuer_(std::move(issuer)),
      turns_(std::move(turns)),
      slots_(std::max<std::uint64_t>(2, budget_bytes / kSlotBytes)) {}

StagingQueue::~StagingQueue() {
  if (!streams_ || copies_have_ended(*streams_)) return;
  new std::vector<Slot>(std::move(slots_));
}

StagingQueue::EntryPtr StagingQueue::enqueue(const std::shared_ptr<StagedOperation>& operation,
                                             const StagingContext& context, const collectives::Call& call,
                                             std::optional<std::uint64_t> sequence,
                                             std::function<void(const std::exception_ptr&)> stored) {
  auto entry = std::make_shared<Entry>();
  const std::lock_guard lock(mutex_);
  if (is_closed_) std::rethrow_exception(closed());
  Slot& slot = slots_[(first_ + entries_.size()) % slots_.size()];
  if (!slot.memory.defined()) slot.memory = allocate_(kSlotBytes, device_);
  entry->chunk = std::make_unique<StagedChunk>(operation, context, call, &slot, clock_);
  if (context.library) {
    entry->sequence = sequence;
    entry->parts = library_parts_of(call.operation);
    entry->limit = context.timeout;
  }
  entry->stored = std::move(stored);
  entries_.push_back(entry);
  return entry;
}

void StagingQueue::load() {
  {
    std::unique_lock lock(mutex_);
    grant_slots(lock);
  }
  issuer_->run();
}

// Holding the lock keeps the requests for turns in the order of the chunks.
void StagingQueue::grant_slots(std::unique_lock<std::mutex>& /*lock*/) {
  while (admitted_ < std::min(entries_.size(), slots_.size())) {
    const EntryPtr entry = entries_[admitted_++];
    const auto go = [issuer = issuer_, self = shared_from_this(), entry](const std::exception_ptr& turn) {
      issuer->push([self, entry, turn] { self->load_entry(entry, turn); });
    };
    const bool takes_turn = entry->sequence && entry->parts.in;
    takes_turn ? turns_.request(entry->step(/*goes_back=*/false), entry->limit, go) : go(nullptr);
  }
}

void StagingQueue::load_entry(const EntryPtr& entry, const std::exception_ptr& turn) {
  std::exception_ptr error = turn;
  {
    const std::lock_guard lock(mutex_);
    entry->is_loading = !turn && entry->chunk && !entry->is_given_up && !is_closed_;
  }
  try {
    if (entry->is_loading) entry->chunk->load();
  } catch (const Error&) {
    error = std::current_exception();
  } catch (const std::exception& failure) {
    error = std::make_exception_ptr(
        Error(ErrorKind::kUnavailable, "copying a tensor to the host failed: " + plain_text(failure)));
  }
  const std::lock_guard lock(mutex_);
  entry->error = error;
  entry->is_loading = false;
  entry->is_issued = true;
  changed_.notify_all();
}

// A thread that waits for a chunk issues what is pending: no other thread may be awake.
bool StagingQueue::is_loaded(Entry& entry) {
  std::unique_lock lock(mutex_);
  if (!entry.is_issued) {
    lock.unlock();
    issuer_->run();
    lock.lock();
  }
  if (entry.error) std::rethrow_exception(entry.error);
  if (!entry.is_issued || !entry.chunk) return false;
  lock.unlock();
  return entry.chunk->is_loaded();
}

// Only after all earlier chunks: results reach the tensors in the order of the operations.
void StagingQueue::arrived(const EntryPtr& entry, std::uint32_t segment, std::uint64_t end) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || entries_.front() != entry) return;
  }
  entry->chunk->arrived(segment, end);
}

void StagingQueue::crossed(const EntryPtr& entry) { mark_crossed(entry); }

void StagingQueue::give_up(const EntryPtr& entry) {
  {
    std::unique_lock lock(mutex_);
    entry->is_given_up = true;
    // Its tensors must live until the copies that are being issued have been issued.
    changed_.wait(lock, [&] { return !entry->is_loading || is_closed_; });
  }
  mark_crossed(entry);
}

void StagingQueue::mark_crossed(const EntryPtr& entry) {
  std::unique_lock lock(mutex_);
  entry->has_crossed = true;
  if (!is_closed_) return request_stores(lock);
  lock.unlock();
  finish(*entry, closed());
}

// Requests the turns of the chunks at the front that have crossed, in order.
void StagingQueue::request_stores(std::unique_lock<std::mutex>& /*lock*/) {
  for (const EntryPtr& entry : entries_) {
    if (!entry->has_crossed) return;
    if (std::exchange(entry->has_requested_store, true)) continue;
    const auto go = [issuer = issuer_, self = shared_from_this(), entry](const std::exception_ptr& turn) {
      issuer->push([self, entry, turn] { self->store_through(entry, turn); });
    };
    const bool has_turn = entry->sequence && entry->parts.out;
    if (has_turn && !entry->is_given_up) {
      turns_.request(entry->step(/*goes_back=*/true), entry->limit, go);
    } else {
      if (has_turn && entry->parts.in) turns_.give_up(entry->step(/*goes_back=*/true));
      go(nullptr);
    }
  }
}

// A chunk that needs no turn may be ready before one in front of it is; it is stored together with that one.
void StagingQueue::store_through(const EntryPtr& entry, const std::exception_ptr& turn) {
  std::unique_lock lock(mutex_);
  entry->may_store = true;
  entry->error = turn;
  while (!is_closed_ && !entries_.empty() && entries_.front()->may_store) store_front(lock);
  if (is_closed_) return;
  grant_slots(lock);
}

// Releases the lock while it stores.
void StagingQueue::store_front(std::unique_lock<std::mutex>& lock) {
  const EntryPtr front = entries_.front();  // keeps its slot until it is stored
  front->is_storing = true;
  lock.unlock();
  std::exception_ptr error = front->error;
  try {
    if (!front->is_given_up && !error) front->chunk->store();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (!is_closed_) {
    entries_.pop_front();
    ++first_;
    if (admitted_ > 0) --admitted_;  // one that was given up may not have been admitted
    changed_.notify_all();
  }
  lock.unlock();
  finish(*front, error);
  lock.lock();
}

void StagingQueue::finish(Entry& entry, const std::exception_ptr& error) {
  if (entry.is_given_up) return;
  entry.chunk.reset();
  entry.stored(error);
}

bool StagingQueue::drain(Deadline deadline, const std::function<bool()>& has_failed) {
  std::unique_lock lock(mutex_);
  while (!entries_.empty() && !deadline.expired() && !has_failed()) {
    changed_.wait_for(lock, deadline.remaining(std::chrono::milliseconds(100)));
  }
  return entries_.empty();
}

void StagingQueue::close() {
  std::deque<EntryPtr> rest;
  std::vector<EntryPtr> waiting;  // those that have crossed and wait for earlier ones
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    rest.swap(entries_);
    admitted_ = 0;
    changed_.notify_all();
    std::copy_if(rest.begin(), rest.end(), std::back_inserter(waiting),
                 [](const EntryPtr& entry) { return entry->has_crossed && !entry->is_storing; });
  }
  for (const EntryPtr& entry : waiting) finish(*entry, closed());
}

}  // namespace atl::pytorch
