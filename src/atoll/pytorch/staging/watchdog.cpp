// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kWatchPollInterval{20};
constexpr std::chrono::milliseconds kWatchdogDrainInterval{1};  // between looks of drain()

struct HowToInterrupt {
  Interrupt interrupt;
  TakeBack take_back;
  std::thread::native_handle_type main_thread{};
};

HowToInterrupt& how_to_interrupt() {
  static auto* const how = new HowToInterrupt;
  return *how;
}

// Some works look for errors only in isCompleted(), and some throw them there.
std::string fault_of(const Watchdog::Entry& entry) {
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

bool has_succeeded(const Watchdog::Entry& entry) {
  const auto has_ended = [](const auto& work) { return work->isCompleted(); };
  try {
    if (!std::all_of(entry.works.begin(), entry.works.end(), has_ended) || !fault_of(entry).empty()) return false;
    const auto library = entry.library.lock();
    return !library || !library->is_aborted();
  } catch (...) {
    return false;
  }
}

// What the library reports while works have not ended, which may not know of it.
std::string fault_of_library(const Watchdog::Entry& entry) {
  const auto library = entry.library.lock();
  const std::string fault = library ? library->fault() : "";
  return has_succeeded(entry) ? "" : fault;
}

// Libraries report their own timeouts as text.
bool is_timeout(const std::string& fault) {
  return fault.find("timed out") != std::string::npos || fault.find("timeout") != std::string::npos;
}

// A library may be unable to run operations of two groups side by side on one device.
std::string hint_of_other_groups(const Watchdog::Entry& entry, const std::vector<Watchdog::EntryPtr>& unfinished) {
  const auto other =
      std::find_if(unfinished.begin(), unfinished.end(), [&](const auto& each) { return each->owner != entry.owner; });
  if (other == unfinished.end()) return "";
  return "; " + (*other)->what +
         " of another group has not ended either: the library may be unable to run both at once, so wait for one "
         "group's operations before starting those of the other, or start them in the same order on every rank";
}

}  // namespace

void set_interrupt(Interrupt interrupt, TakeBack take_back, std::thread::native_handle_type main_thread) {
  how_to_interrupt() = {std::move(interrupt), std::move(take_back), main_thread};
}

Watchdog::EntryPtr Watchdog::add(Entry entry) {
  auto added = std::make_shared<Entry>(std::move(entry));
  const std::lock_guard lock(mutex_);
  if (stopping_) return added;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "atoll-watch");
      if (prepare_ != nullptr) prepare_();
      serve();
    });
  }
  entries_.push_back(added);
  if (entries_.size() == 1) changed_.notify_one();
  return added;
}

void Watchdog::note_reliance(const EntryPtr& entry) {
  const Reliance self(entry->owner, pthread_self());
  std::optional<Error> raised;
  {
    const std::lock_guard lock(mutex_);
    if (entry->lost) throw Error(*entry->lost);
    const auto known = raised_.find(self);
    if (known == raised_.end()) {
      entry->relying.push_back(self.second);
      return;
    }
    raised = known->second;
  }
  if (!has_succeeded(*entry)) throw Error(*raised);
}

void Watchdog::note_future(const EntryPtr& entry) {
  const Reliance self(entry->owner, how_to_interrupt().main_thread);
  std::optional<Error> lost;
  {
    const std::lock_guard lock(mutex_);
    if (raised_.count(self) > 0) return;
    lost = entry->lost;
    entry->relying.push_back(self.second);
    if (lost) interrupting_.insert(self);
  }
  if (lost) interrupt({self}, *lost);
}

// Works are queried and released without the mutex: both may need Python's lock (releasing the last reference of a
// tensor takes it), and the thread that holds that lock may be waiting for the mutex.
void Watchdog::fail_owner(const void* owner, const Error& error) {
  std::vector<EntryPtr> known = of_owner(owner);
  std::vector<EntryPtr> unfinished;
  std::copy_if(known.begin(), known.end(), std::back_inserter(unfinished),
               [](const EntryPtr& entry) { return !has_succeeded(*entry); });
  std::vector<Reliance> relying;
  {
    const std::lock_guard lock(mutex_);
    remove(known);
    for (const EntryPtr& entry : unfinished) {
      entry->lost = error;
      for (const auto thread : entry->relying) relying.emplace_back(owner, thread);
    }
    std::sort(relying.begin(), relying.end());
    relying.erase(std::unique(relying.begin(), relying.end()), relying.end());
    interrupting_.insert(relying.begin(), relying.end());
  }
  interrupt(relying, error);
}

void Watchdog::fail_entry(const EntryPtr& entry, const Error& error) {
  if (has_succeeded(*entry)) return;
  const std::lock_guard lock(mutex_);
  if (!entry->lost) entry->lost = error;
  remove({entry});
}

void Watchdog::interrupt(const std::vector<Reliance>& relying, const Error& error) {
  for (const Reliance& each : relying) {
    try {
      how_to_interrupt().interrupt(each.second, error);
    } catch (const std::exception& failure) {
      log(LogLevel::kError,
          std::string("could not interrupt a thread that relies on lost results: ") + plain_text(failure));
    }
    const std::lock_guard lock(mutex_);
    interrupting_.erase(interrupting_.find(each));
    interrupted_.insert(each);
    was_interrupted_.notify_all();
  }
}

void Watchdog::note_raised(const void* owner, const Error& error) {
  const Reliance self(owner, pthread_self());
  {
    std::unique_lock lock(mutex_);
    raised_.emplace(self, error);
    for (const EntryPtr& entry : entries_) {
      if (entry->owner != owner) continue;
      auto& relying = entry->relying;
      relying.erase(std::remove(relying.begin(), relying.end(), self.second), relying.end());
    }
    was_interrupted_.wait(lock, [&] { return interrupting_.count(self) == 0; });
    if (interrupted_.erase(self) == 0) return;
    const auto is_own = [&](const Reliance& each) { return each.second == self.second; };
    const bool has_another_reason = std::any_of(interrupting_.begin(), interrupting_.end(), is_own) ||
                                    std::any_of(interrupted_.begin(), interrupted_.end(), is_own);
    if (has_another_reason) return;  // it is not known which of the errors would be cancelled
  }
  how_to_interrupt().take_back(self.second);
}

bool Watchdog::drain(const void* owner, Deadline limit, const std::function<bool()>& is_over) {
  while (true) {
    const std::vector<EntryPtr> known = of_owner(owner);
    const auto has_ended = [](const EntryPtr& entry) { return has_succeeded(*entry); };
    if (std::all_of(known.begin(), known.end(), has_ended)) return true;
    if (limit.expired() || is_over()) return false;
    std::this_thread::sleep_for(kWatchdogDrainInterval);
  }
}

void Watchdog::forget(const void* owner) {
  const std::vector<EntryPtr> known = of_owner(owner);
  const std::lock_guard lock(mutex_);
  remove(known);
  for (auto at = interrupted_.begin(); at != interrupted_.end();) {
    at = at->first == owner ? interrupted_.erase(at) : std::next(at);
  }
  for (auto at = raised_.begin(); at != raised_.end();) {
    at = at->first.first == owner ? raised_.erase(at) : std::next(at);
  }
}

std::vector<Watchdog::EntryPtr> Watchdog::of_owner(const void* owner) {
  std::vector<EntryPtr> found;
  const std::lock_guard lock(mutex_);
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(found),
               [&](const EntryPtr& entry) { return entry->owner == owner; });
  return found;
}

void Watchdog::remove(const std::vector<EntryPtr>& entries) {
  const std::set<EntryPtr> gone(entries.begin(), entries.end());
  entries_.erase(
      std::remove_if(entries_.begin(), entries_.end(), [&](const EntryPtr& entry) { return gone.count(entry) > 0; }),
      entries_.end());
}

void Watchdog::serve() {
  while (true) {
    std::vector<EntryPtr> entries;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !entries_.empty(); });
      changed_.wait_for(lock, kWatchPollInterval, [this] { return stopping_; });
      if (stopping_) return;
      entries = entries_;
    }
    const auto ended =
        std::partition(entries.begin(), entries.end(), [](const EntryPtr& entry) { return !has_succeeded(*entry); });
    const std::vector<EntryPtr> done(ended, entries.end());
    {
      const std::lock_guard lock(mutex_);
      remove(done);
    }
    entries.erase(ended, entries.end());
    check(entries);
  }
}

// `entries`: all that have not ended.
void Watchdog::check(const std::vector<EntryPtr>& entries) {
  for (const EntryPtr& entry : entries) {
    if (entry->is_reported) continue;
    std::string fault = fault_of(*entry);
    if (fault.empty()) {  // a Work that knows more will have said it by the next time
      std::string said = fault_of_library(*entry);
      if (!said.empty() && std::exchange(entry->library_has_failed, true)) fault = std::move(said);
    }
    if (fault.empty() && !entry->deadline.expired()) continue;
    entry->is_reported = true;
    const std::string hint = fault.empty() || is_timeout(fault) ? hint_of_other_groups(*entry, entries) : "";
    entry->fail(fault.empty() ? Error(ErrorKind::kTimeout, entry->what + " timed out" + hint)
                              : Error(ErrorKind::kPeerLost, entry->what + " failed: " + fault + hint));
  }
}

void Watchdog::stop() {
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
