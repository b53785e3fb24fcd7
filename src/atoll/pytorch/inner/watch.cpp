// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/inner/watch.h"

#include <pthread.h>

#include <algorithm>

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

bool has_ended(const Watch::Entry& entry) {
  return std::all_of(entry.works.begin(), entry.works.end(), [](const auto& work) { return work->isCompleted(); });
}

std::string fault_of(const Watch::Entry& entry) {
  for (const auto& work : entry.works) {
    try {
      if (const auto error = work->exception()) std::rethrow_exception(error);
    } catch (const std::exception& error) {
      return plain_text(error);
    }
  }
  return "";
}

}  // namespace

void set_interrupt(Interrupt interrupt, std::thread::native_handle_type main_thread) {
  how_to_interrupt() = {std::move(interrupt), main_thread};
}

Watch::EntryPtr Watch::add(Entry entry) {
  auto added = std::make_shared<Entry>(std::move(entry));
  const std::lock_guard lock(mutex_);
  if (stopping_) return added;
  entries_.push_back(added);
  if (entries_.size() == 1) changed_.notify_one();
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "atoll-watch");
      serve();
    });
  }
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

void Watch::give_up(const void* owner, const Error& error) {
  std::vector<EntryPtr> unfinished;
  std::vector<std::thread::native_handle_type> threads;
  {
    const std::lock_guard lock(mutex_);
    const auto is_of_owner = [&](const EntryPtr& entry) { return entry->owner == owner; };
    std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(unfinished), is_of_owner);
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), is_of_owner), entries_.end());
    for (const EntryPtr& entry : unfinished) {
      if (has_ended(*entry) && fault_of(*entry).empty()) continue;
      entry->lost = error;
      threads.insert(threads.end(), entry->relying.begin(), entry->relying.end());
    }
  }
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  for (const auto thread : threads) how_to_interrupt().interrupt(thread, error);
}

void Watch::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  entries_.erase(
      std::remove_if(entries_.begin(), entries_.end(), [&](const EntryPtr& entry) { return entry->owner == owner; }),
      entries_.end());
}

void Watch::serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, kPause);
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [](const EntryPtr& entry) { return has_ended(*entry) && fault_of(*entry).empty(); }),
                   entries_.end());
    auto left = entries_;
    lock.unlock();
    look(std::move(left));
    lock.lock();
  }
}

void Watch::look(std::vector<EntryPtr> entries) {
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
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    entries_.clear();
    thread.swap(thread_);
    changed_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

}  // namespace atl::pytorch
