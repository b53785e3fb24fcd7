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
#include "atoll/pytorch/staging/trip.h"
#include "atoll/pytorch/staging/watch.h"

namespace atl::pytorch {

/// By so much the timeouts that a library is given exceed Atoll's own deadline, which is to be the first.
inline constexpr std::chrono::milliseconds kLibraryGrace{2000};

/// The library that a group uses inside this rank's island, if any: joined with the island's other ranks, watched while it
/// works, and ended when the group fails. Thread-safe.
class IslandLibrary final : public std::enable_shared_from_this<IslandLibrary> {
 public:
  /// `place`: what this rank stated. The Works of work_of() keep `owner` alive.
  IslandLibrary(c10d::Backend& owner, std::shared_ptr<OpenGroup> open, Place place);

  /// Makes the communicators when the island has a library to use, together with its other ranks. Throws atl::Error, with
  /// which the group has failed then.
  void join(const c10::intrusive_ptr<c10d::Store>& store);

  /// Null: there is none, or the group is closed.
  std::shared_ptr<Library> get() const;

  /// Its name, "" for none.
  std::string name() const;

  /// Whether all ranks of the group are one island with a library. An answer that all of them share; also once closed.
  bool has_all_ranks() const noexcept { return has_all_ranks_.load(std::memory_order_relaxed); }

  /// Looks after operations that were issued now and may last for `timeout` (negative: the group's). Null where the library
  /// is on the CPU, because whoever waits for such operations learns how they end.
  Watch::EntryPtr watch(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) const;

  /// The same for the library's operations behind the bridge, whose results those who wait for the trip rely on. All of them
  /// have been issued.
  void watch_results(const std::shared_ptr<Trip>& trip, std::chrono::milliseconds timeout) const;

  /// One Work for operations of the library, watched by `entry` or, for null, one by one or not at all.
  WorkPtr work_of(std::vector<WorkPtr> works, Watch::EntryPtr entry);

  /// Throws what `error` of the library means: a wrong argument is the caller's, anything else ends the group.
  [[noreturn]] void explain(const std::exception_ptr& error) const;

  /// From now on there is none.
  std::shared_ptr<Library> take();

 private:
  LibraryRequest request(const c10::intrusive_ptr<c10d::Store>& store, std::size_t island) const;

  c10d::Backend& owner_;
  const std::shared_ptr<OpenGroup> open_;
  const Place place_;
  std::atomic<bool> has_all_ranks_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Library> library_;
};

}  // namespace atl::pytorch
