// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/library.h"

namespace atl::pytorch {

/// Raises an error in another thread, before it continues with wrong values.
using Interrupt = std::function<void(std::thread::native_handle_type thread, const Error& error)>;

/// Cancels an interrupt whose error has not been raised yet.
using TakeBack = std::function<void(std::thread::native_handle_type thread)>;

/// Sets how threads are interrupted, which only Python can do. Called once, before the first group. `main_thread` is
/// interrupted for results whose users are not known.
void set_interrupt(Interrupt interrupt, TakeBack take_back, std::thread::native_handle_type main_thread);

/// Watches operations of islands' libraries on accelerators. A wait for such an operation makes only a stream wait, and
/// if the operation fails, the stream continues with wrong values once the library has been aborted. So the watchdog
/// detects failures and passed deadlines, and interrupts the threads that rely on the values before that. It runs one
/// thread, started with the first operation. Thread-safe.
class Watchdog {
 public:
  /// Library operations of one group that make up one operation of the caller's.
  struct Entry {
    const void* owner = nullptr;  ///< the group
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::weak_ptr<const Library> library;  ///< the one that the works are of
    std::string what;                      ///< "all_reduce of simccl on rank 3"
    Deadline deadline = Deadline::never();
    std::function<void(const Error&)> fail;  ///< ends the group
    std::vector<std::thread::native_handle_type> relying;
    bool is_reported = false;
    bool library_has_failed = false;
    std::optional<Error> lost;  ///< the owner failed before the operations had succeeded
  };
  using EntryPtr = std::shared_ptr<Entry>;

  /// `prepare`, if not null, is called first by the thread.
  explicit Watchdog(void (*prepare)() = nullptr) : prepare_(prepare) {}
  ~Watchdog() { stop(); }

  EntryPtr add(Entry entry);

  /// Notes that the calling thread continues as if the operations had ended; note_future() is for a future, whose
  /// threads are not known. note_reliance() throws atl::Error if the operations will never end, or if they have not and
  /// the owner's failure has already been raised in the calling thread.
  void note_reliance(const EntryPtr& entry);
  void note_future(const EntryPtr& entry);

  /// Interrupts the threads that rely on unfinished or failed operations of the owner, which has failed, and forgets
  /// all its operations. Afterwards the library may be aborted.
  void fail_owner(const void* owner, const Error& error);

  /// Marks one entry, added when its owner had failed already, as lost unless its operations have succeeded:
  /// note_reliance() throws `error` then.
  void fail_entry(const EntryPtr& entry, const Error& error);

  /// Notes that the calling thread is about to throw `error`, with which the owner has failed, so that it is not
  /// interrupted for the same error while it handles it, or later. May wait for a thread that takes Python's lock.
  void note_raised(const void* owner, const Error& error);

  /// Waits until all operations of the owner have succeeded. Returns false at `limit`, or once `is_over()` returns
  /// true.
  bool drain(const void* owner, Deadline limit, const std::function<bool()>& is_over);

  /// Stops watching the owner, which has been closed.
  void forget(const void* owner);

  void stop();

 private:
  using Reliance = std::pair<const void*, std::thread::native_handle_type>;

  void serve();
  static void check(const std::vector<EntryPtr>& entries);
  void interrupt(const std::vector<Reliance>& relying, const Error& error);  ///< `relying` must be in interrupting_
  std::vector<EntryPtr> of_owner(const void* owner);
  void remove(const std::vector<EntryPtr>& entries);  ///< with mutex_ held; the caller keeps the entries alive

  void (*const prepare_)();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<EntryPtr> entries_;
  std::multiset<Reliance> interrupting_;  // being interrupted at present
  std::set<Reliance> interrupted_;        // for which no call has thrown the error yet
  std::map<Reliance, Error> raised_;      // for which a call has thrown this error
  std::condition_variable was_interrupted_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atl::pytorch
