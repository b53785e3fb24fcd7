// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/core/deadline.h"
#include "atoll/core/store.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// The timeout of a wait that has none.
inline constexpr std::chrono::hours kMaxStoreWait{24};

/// Calls `body`, which uses `store` and owns all else that it uses: a TCPStore waits forever for a server that is
/// reachable but does not answer, such as a stopped one, so for a TCPStore `body` runs on a separate thread, which may be
/// left behind. Other stores observe their timeouts themselves. Throws Error(kStore) if `body` throws or does not end in
/// time, where `action` describes the call ("set key ..."), and Error(kUnavailable) if no thread can be started.
void call_store(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, const std::string& action,
                std::function<void()> body);

/// The same for a `body` that has a result, which it returns.
template <typename Body>
auto store_call(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, const std::string& action, Body body) {
  using Result = std::invoke_result_t<Body>;
  if constexpr (std::is_void_v<Result>) {
    call_store(store, deadline, action, std::move(body));
  } else {
    const auto result = std::make_shared<std::optional<Result>>();
    call_store(store, deadline, action, [result, body = std::move(body)] { *result = body(); });
    return std::move(**result);
  }
}

/// Idle clones of the job's store. A clone is a connection of its own, which a store's server may take seconds to
/// accept (it may look up the name of the address). Thread-safe.
class StoreClones {
 public:
  /// Returns a clone of `root`; null if that store cannot be cloned. Throws Error(kStore) if its server has ended or
  /// does not answer until `deadline`, Error(kUnavailable) without a free descriptor.
  c10::intrusive_ptr<c10d::Store> take(const c10::intrusive_ptr<c10d::Store>& root, Deadline deadline);

  /// Returns a clone from take() for the next user. Must not be called after an error of that clone.
  void give_back(const c10::intrusive_ptr<c10d::Store>& root, c10::intrusive_ptr<c10d::Store> clone);

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> root_;  // of the idle ones
  std::vector<c10::intrusive_ptr<c10d::Store>> idle_;
};

/// atl::Store over torch's, with `prefix` in front of every key. Uses a clone, so that a wait here never blocks another
/// user of the same store, or the store itself if it cannot be cloned. `deadline` applies to calls that have none.
/// Throws Error(kStore) if the server does not answer.
class StoreAdaptor final : public Store {
 public:
  StoreAdaptor(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix, StoreClones& clones,
               Deadline deadline);
  ~StoreAdaptor() override;
  void set(const std::string& key, const std::vector<std::byte>& value) override;
  std::vector<std::byte> get(const std::string& key, Deadline deadline) override;

 private:
  StoreClones& clones_;
  const Deadline deadline_;
  const c10::intrusive_ptr<c10d::Store> root_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_own_;  // a clone that only this uses
  bool has_failed_ = false;
  std::string prefix_;
};

/// Returns `store` without the prefix that torch adds for the device of a backend ("cpu/"): ranks of one group may use
/// different devices, and must share their keys.
c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store>& store);

/// Returns the store below all prefixes, which is the same for every group of the job.
c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store);

/// Returns what all of torch's prefixes put in front of a key; "" for none.
std::string prefixes_of(const c10::intrusive_ptr<c10d::Store>& store);

/// Returns the host name of a TCPStore's server, else "".
std::string host_of(const c10::intrusive_ptr<c10d::Store>& root);

/// Returns how often a group of `size` ranks has met before under `key`. Every rank of one meeting gets the same
/// number, so that a group made again in the same store does not read the old one's keys. One round trip; every rank
/// calls it once per meeting. Throws Error(kStore), at `deadline` at the latest.
std::int64_t count_meetings(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key, int size,
                            Deadline deadline);

/// Returns the first value that any rank of the job proposes under `key`. Throws Error(kStore), at `deadline` at the
/// latest.
std::vector<std::byte> agree(const c10::intrusive_ptr<c10d::Store>& root, const std::string& key,
                             const std::vector<std::byte>& proposal, Deadline deadline);

/// Returns the store in which an island's library meets while it is made, with all of torch's prefixes of `store` and
/// then `prefix` in front of its keys. Waits there end with the error of `group` once that has failed, because a rank
/// will then never join. `timeout`: of waits that have none, and for the server's answers.
c10::intrusive_ptr<c10d::Store> store_for_library(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::string& prefix, std::chrono::milliseconds timeout,
                                                  std::weak_ptr<collectives::Group> group);

}  // namespace atl::pytorch
