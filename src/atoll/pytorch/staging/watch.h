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

namespace atl::pytorch {

/// Raises an error in a thread that is somewhere else: before it goes on with values that are wrong.
using Interrupt = std::function<void(std::thread::native_handle_type thread, const Error& error)>;

/// Undoes it where the error has not been raised yet.
using TakeBack = std::function<void(std::thread::native_handle_type thread)>;

/// How threads are interrupted: Python knows. Set once, before the first group; `main_thread` is whoever else uses results.
void set_interrupt(Interrupt interrupt, TakeBack take_back, std::thread::native_handle_type main_thread);

/// Looks after operations of islands' libraries on accelerators. Who waits for such an operation lets a stream wait and goes
/// on; if the operation fails, the stream goes on with wrong values once the library has been aborted. So the watch notices
/// failures and passed deadlines, and interrupts the threads that rely on the values first. One thread, while there is
/// something to watch. Thread-safe.
class Watch {
 public:
  /// Operations of one group that make one.
  struct Entry {
    const void* owner = nullptr;  ///< the group
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::string what;  ///< "all_reduce of simccl on rank 3"
    Deadline deadline = Deadline::never();
    std::function<void(const Error&)> fail;  ///< ends the group
    std::vector<std::thread::native_handle_type> relying;
    bool is_reported = false;
    std::optional<Error> lost;  ///< the owner was given up before the operations had ended well
  };
  using EntryPtr = std::shared_ptr<Entry>;

  ~Watch() { stop(); }

  EntryPtr add(Entry entry);

  /// The calling thread goes on as if the operations had ended; or, for a future, nobody knows which thread does. The first
  /// throws atl::Error when they never will, and to a thread that has been told that the owner failed while they have not.
  void note_reliance(const EntryPtr& entry);
  void note_future(const EntryPtr& entry);

  /// The owner has failed: interrupts those who rely on operations of it that have not ended well, and forgets all of them.
  /// Afterwards the library may be aborted.
  void give_up(const void* owner, const Error& error);

  /// The calling thread is about to throw `error`, what the owner has failed with: for that it is not interrupted any more,
  /// neither where it deals with the error nor later. May wait for a thread that takes Python's lock.
  void note_told(const void* owner, const Error& error);

  /// Waits until all operations of the owner have ended. False where one fails, or that takes longer than `limit`, or once
  /// `is_over()`.
  bool drain(const void* owner, Deadline limit, const std::function<bool()>& is_over);

  /// The owner has been closed: nothing of it is watched any more.
  void forget(const void* owner);

  void stop();

 private:
  using Reliance = std::pair<const void*, std::thread::native_handle_type>;

  void serve();
  static void look(const std::vector<EntryPtr>& entries);
  void interrupt(const std::vector<Reliance>& relying, const Error& error);  ///< all of them are in interrupting_
  std::vector<EntryPtr> of_owner(const void* owner);
  void remove(const std::vector<EntryPtr>& entries);  ///< with the mutex; the caller's references keep them alive

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<EntryPtr> entries_;
  std::multiset<Reliance> interrupting_;  // just now
  std::set<Reliance> interrupted_;        // and not told yet by an exception of a call
  std::map<Reliance, Error> told_;        // by an exception of a call, with what
  std::condition_variable was_interrupted_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atl::pytorch
