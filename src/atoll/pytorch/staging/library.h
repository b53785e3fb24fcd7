// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/collectives/topology.h"
#include "atoll/collectives/types.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/abortable_waiter.h"
#include "atoll/pytorch/staging/in_flight_counter.h"

namespace atl::pytorch {

/// The device that a rank computes on, and the library with which its island may reduce there.
struct Place {
  std::string device = "cpu";        ///< PyTorch's device type
  int index = 0;                     ///< of the device that the rank uses, among those of this type
  std::string library;               ///< a backend of torch.distributed; "" for none
  std::string stack = "cpu";         ///< names the island of ranks that set no ATOLL_ISLAND
  bool one_host = true;              ///< such an island lies on one host
  bool named = false;                ///< the user names the library: it is used even in a group of one rank
  std::set<std::string> reductions;  ///< those that the library computes correctly: "sum", "avg"
  std::string problem;               ///< the reason why this rank cannot take part; "" for none
};

/// Describes a communicator that all ranks of an island make together.
struct LibraryRequest {
  std::string library;
  std::string device;
  c10::intrusive_ptr<c10d::Store> store;  ///< used by this communicator alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};  ///< for all ranks to join
  std::string group_name;               ///< unique
  std::vector<int> global_ranks;
};

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using LibraryMaker = std::function<BackendPtr(const LibraryRequest&)>;

/// Sets the function that makes communicators, because Python knows the vendors (atoll.vendors). Called once, before
/// the first group.
void set_library_maker(LibraryMaker maker);

/// Two communicators of a vendor's library over the ranks of one island: one folds contributions, the other spreads
/// results, and neither waits for the other. Operations of each must be issued in one order on all ranks. Thread-safe.
class Library {
 public:
  /// Makes both; `rank` and `size` count in the island. Throws what the vendor's library throws.
  Library(const Place& place, const LibraryRequest& request);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Connects both with the other ranks of the island. Called on an accelerator: NCCL would connect in the first
  /// operation. Blocks until all ranks call it; nothing can interrupt that. Throws what the vendor's library throws.
  void connect();

  const std::string& name() const noexcept { return name_; }
  c10::DeviceType device_type() const noexcept { return device_type_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  c10d::Backend& in() noexcept { return *in_; }
  c10d::Backend& out() noexcept { return *out_; }

  /// Waits for its operations on the CPU; null on an accelerator, where a stream waits.
  const std::shared_ptr<AbortableWaiter>& waiter() const noexcept { return waiter_; }

  /// Counts its operations under way on the CPU; on an accelerator the watchdog has them.
  InFlightCounter& in_flight() noexcept { return in_flight_; }

  /// Returns whether the library can compute this reduction: reduces() for a whole operation, folds() for the island's
  /// part.
  bool reduces(collectives::ReduceOp op, at::ScalarType type) const;
  bool folds(collectives::ReduceOp op, at::ScalarType type) const;

  /// Returns what the library says has gone wrong in operations of `in`; "" for nothing, and if it cannot tell.
  std::string fault() const;

  /// Ends the operations under way and refuses new ones; may be called by any thread, and only the first call has an
  /// effect. An operation on the CPU that cannot be ended stays under way, and its communicators live on without
  /// anything that waits for them.
  void abort() noexcept;
  void shutdown() noexcept;

  /// Returns whether abort() was called before: operations may end without their results, whatever their Works say.
  bool is_aborted() const;

 private:
  enum class End { kNone, kShutDown, kAborted };
  void end(End how) noexcept;
  void end(c10d::Backend& backend, End how) const noexcept;

  const std::string name_;
  const c10::DeviceType device_type_;
  const int device_index_;
  const int rank_;
  const int size_;
  const std::set<std::string> reductions_;
  BackendPtr in_;
  BackendPtr out_;
  bool reports_errors_ = false;
  const std::shared_ptr<AbortableWaiter> waiter_;
  InFlightCounter in_flight_;
  mutable std::mutex mutex_;
  End ended_ = End::kNone;
};

}  // namespace atl::pytorch
