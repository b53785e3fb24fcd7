// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/watch.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "atoll/pytorch/inner/plain_text.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kPause{20};

struct HowToInterrupt {
  Interrupt interrupt;
  std::thread::native_handle_type main_thread{};
};

HowToInterrupt& how_to_interrupt() {
  static auto* const how = new HowToInterrupt;
  return *how;
}

// Some works look for errors only when they are asked whether they have ended, and some throw them then.
std::string fault_of(const Watch::Entry& entry) {
  for (const auto& work : entry.works) {
    try {
      work->isCompleted();
      if (const auto error = work->exception()) std::rethrow_exception(error);
    } catch (const std::exception& error) {
      return plain_text(error);
    } catch (...) {
      return "an unknown error";
    }
  }
  return "";
}

bool has_ended_well(const Watch::Entry& entry) {
  const auto has_ended = [](const auto& work) { return work->isCompleted(); };
  try {
    return std::all_of(entry.works.begin(), entry.works.end(), has_ended) && fault_of(entry).empty();
  } catch (...) {
    return false;
  }
}

}  // namespace

void set_interrupt(Interrupt interrupt, std::thread::native_handle_type main_thread) {
  how_to_interrupt() = {std::move(interrupt), main_thread};
}

Watch::EntryPtr Watch::add(Entry entry) {
  auto added = std::make_shared<Entry>(std::move(entry));
  const std::lock_guard lock(mutex_);
  if (stopping_) return added;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "atoll-watch");
      serve();
    });
  }
  entries_.push_back(added);
  if (entries_.size() == 1) changed_.notify_one();
  return added;
}

void Watch::note_reliance(const EntryPtr& entry) {
  const std::lock_guard lock(mutex_);
  if (entry->lost) throw Error(*entry->lost);
  entry->relying.push_back(pthread_self());
}

void Watch::note_future(const EntryPtr& entry) {
  std::optional<Error> lost;
  {
    const std::lock_guard lock(mutex_);
    lost = entry->lost;
    entry->relying.push_back(how_to_interrupt().main_thread);
  }
  if (lost) how_to_interrupt().interrupt(how_to_interrupt().main_thread, *lost);
}

// Works are asked, and let go, without the mutex: both may need Python's lock (the last reference of a tensor takes it), and
// who holds that one may be waiting for the mutex.
void Watch::give_up(const void* owner, const Error& error) {
  std::vector<EntryPtr> known = of_owner(owner);
  std::vector<EntryPtr> unfinished;
  std::copy_if(known.begin(), known.end(), std::back_inserter(unfinished),
               [](const EntryPtr& entry) { return !has_ended_well(*entry); });
  std::vector<std::thread::native_handle_type> threads;
  {
    const std::lock_guard lock(mutex_);
    remove(known);
    for (const EntryPtr& entry : unfinished) {
      entry->lost = error;
      threads.insert(threads.end(), entry->relying.begin(), entry->relying.end());
    }
  }
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  for (const auto thread : threads) how_to_interrupt().interrupt(thread, error);
}

void Watch::forget(const void* owner) {
  const std::vector<EntryPtr> known = of_owner(owner);
  const std::lock_guard lock(mutex_);
  remove(known);
}

std::vector<Watch::EntryPtr> Watch::of_owner(const void* owner) {
  std::vector<EntryPtr> found;
  const std::lock_guard lock(mutex_);
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(found),
               [&](const EntryPtr& entry) { return entry->owner == owner; });
  return found;
}

void Watch::remove(const std::vector<EntryPtr>& entries) {
  const std::set<EntryPtr> gone(entries.begin(), entries.end());
  entries_.erase(
      std::remove_if(entries_.begin(), entries_.end(), [&](const EntryPtr& entry) { return gone.count(entry) > 0; }),
      entries_.end());
}

void Watch::serve() {
  while (true) {
    std::vector<EntryPtr> entries;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !entries_.empty(); });
      changed_.wait_for(lock, kPause, [this] { return stopping_; });
      if (stopping_) return;
      entries = entries_;
    }
    const auto ended =
        std::partition(entries.begin(), entries.end(), [](const EntryPtr& entry) { return !has_ended_well(*entry); });
    const std::vector<EntryPtr> done(ended, entries.end());
    {
      const std::lock_guard lock(mutex_);
      remove(done);
    }
    entries.erase(ended, entries.end());
    look(entries);
  }
}

void Watch::look(const std::vector<EntryPtr>& entries) {
  for (const EntryPtr& entry : entries) {
    if (entry->is_reported) continue;
    const std::string fault = fault_of(*entry);
    if (fault.empty() && !entry->deadline.expired()) continue;
    entry->is_reported = true;
    entry->fail(fault.empty() ? Error(ErrorKind::kTimeout, entry->what + " timed out")
                              : Error(ErrorKind::kPeerLost, entry->what + " failed: " + fault));
  }
}

void Watch::stop() {
  std::thread thread;
  std::vector<EntryPtr> entries;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    entries.swap(entries_);
    thread.swap(thread_);
    changed_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

}  // namespace atl::pytorch
