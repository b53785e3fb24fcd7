// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/staged_operation.h"
#include "atoll/pytorch/staging/watchdog.h"

namespace atl::pytorch {

/// The time by which a library's timeouts exceed Atoll's own deadline, which must expire first.
inline constexpr std::chrono::milliseconds kLibraryGrace{2000};

/// The library that a group uses inside this rank's island, if any. Joins it together with the island's other ranks,
/// watches its operations, and ends it when the group fails. Thread-safe.
class IslandLibrary final : public std::enable_shared_from_this<IslandLibrary> {
 public:
  /// `place`: this rank's own. The Works of work_of() keep `owner` alive.
  IslandLibrary(c10d::Backend& owner, std::shared_ptr<OpenGroup> open, Place place);

  /// Makes the communicators, together with the island's other ranks, if the island has a library to use. Throws
  /// atl::Error; the group has then failed with it.
  void join(const c10::intrusive_ptr<c10d::Store>& store);

  /// Returns the library; null if there is none or the group is closed.
  std::shared_ptr<Library> get() const;

  /// The library's name; "" for none.
  std::string name() const;

  /// Returns whether all ranks of the group are one island with a library. All ranks get the same answer, even after
  /// closing.
  bool has_all_ranks() const noexcept { return has_all_ranks_.load(std::memory_order_relaxed); }

  /// Has the watchdog watch operations that were issued now and may last for `timeout` (negative: the group's). Returns
  /// null if the library is on the CPU, because a thread that waits there for an operation gets its error.
  Watchdog::EntryPtr watch(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) const;

  /// Does the same for the library's operations after the bridge, on whose results the threads that wait for the staged
  /// operation rely. Called once all of them have been issued.
  void watch_results(const std::shared_ptr<StagedOperation>& operation, std::chrono::milliseconds timeout) const;

  /// Makes one Work of operations of the library. `entry`: theirs in the watchdog; null if they have their own or none.
  WorkPtr work_of(std::vector<WorkPtr> works, Watchdog::EntryPtr entry);

  /// Watches operations that were issued now on tensors of `device`, and makes one Work of them. `returned`: what the
  /// library has returned, null for a synchronous operation on the current stream.
  WorkPtr watched_work_of(std::vector<WorkPtr> returned, c10::Device device, std::chrono::milliseconds timeout);

  /// Throws the exception that `error` of the library becomes, and ends the group, because other ranks may have started
  /// the operation. An invalid argument is passed on.
  [[noreturn]] void explain(const std::exception_ptr& error) const;

  /// Returns the library and forgets it.
  std::shared_ptr<Library> take();

 private:
  LibraryRequest request(const c10::intrusive_ptr<c10d::Store>& store, std::size_t island) const;
  void report_refusal(const std::exception& why) const;
  static void connect(const std::shared_ptr<Library>& library, const collectives::Group& group, Deadline deadline);

  c10d::Backend& owner_;
  const std::shared_ptr<OpenGroup> open_;
  const Place place_;
  std::atomic<bool> has_all_ranks_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Library> library_;
};

}  // namespace atl::pytorch
