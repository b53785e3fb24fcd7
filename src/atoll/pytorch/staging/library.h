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
#include "atoll/pytorch/staging/unfinished.h"
#include "atoll/pytorch/staging/waiting.h"

namespace atl::pytorch {

/// What a rank computes on, and with which library its island may reduce there.
struct Place {
  std::string device = "cpu";        ///< PyTorch's device type
  std::string library;               ///< a backend of torch.distributed; "": none
  std::string stack = "cpu";         ///< names the island of ranks that set no ATOLL_ISLAND
  bool one_host = true;              ///< such an island lies on one host
  bool named = false;                ///< the user names the library: it is used in a group of one rank, too
  std::set<std::string> reductions;  ///< that the library does right: "sum", "avg"
  std::string problem;               ///< why this rank cannot take part
};

/// A communicator to be made, by all ranks of an island at the same time.
struct LibraryRequest {
  std::string library;
  std::string device;
  c10::intrusive_ptr<c10d::Store> store;  ///< for this communicator alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};  ///< for all of them to come
  std::string group_name;               ///< unique
  std::vector<int> global_ranks;
};

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using LibraryMaker = std::function<BackendPtr(const LibraryRequest&)>;

/// How communicators are made: Python knows the vendors (atoll.vendors). Set once, before the first group.
void set_library_maker(LibraryMaker maker);

/// Two communicators of a vendor's library over the ranks of one island: contributions go in, results come out, and neither
/// waits for the other. Operations of each must be issued in one order on all ranks. Thread-safe.
class Library {
 public:
  /// Makes both, together with the other ranks of the island; `rank` and `size` count in the island. Throws what the vendor's
  /// library throws.
  Library(const Place& place, const LibraryRequest& request);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& name() const noexcept { return name_; }
  c10::DeviceType device_type() const noexcept { return device_type_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  c10d::Backend& in() noexcept { return *in_; }
  c10d::Backend& out() noexcept { return *out_; }

  /// How to wait for its operations on the CPU; null on an accelerator, where a stream does.
  const std::shared_ptr<Waiting>& waiting() const noexcept { return waiting_; }

  /// What is under way on the CPU; on an accelerator the watch knows.
  Unfinished& unfinished() noexcept { return unfinished_; }

  /// Whether an operation with this reduction may be left to the library, whole or for the island's part of it.
  bool reduces(collectives::ReduceOp op, at::ScalarType type) const;
  bool folds(collectives::ReduceOp op, at::ScalarType type) const;

  /// Ends what is under way and lets nothing begin; any thread, once. What has no way to end, on the CPU, lasts on by itself,
  /// and with it the communicators: nobody waits for them.
  void abort() noexcept;
  void shutdown() noexcept;

 private:
  enum class End { kNone, kShutDown, kAborted };
  void end(End how) noexcept;

  const std::string name_;
  const c10::DeviceType device_type_;
  const int rank_;
  const int size_;
  const std::set<std::string> reductions_;
  BackendPtr in_;
  BackendPtr out_;
  const std::shared_ptr<Waiting> waiting_;
  Unfinished unfinished_;
  std::mutex mutex_;
  End ended_ = End::kNone;
};

}  // namespace atl::pytorch
