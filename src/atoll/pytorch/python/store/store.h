// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/core/deadline.h"
#include "atoll/core/store.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Clones of the job's store that nobody uses at present. A clone is a connection of its own, which a store's server may take
/// seconds to accept (it may look up the name of the address). Thread-safe.
class StoreClones {
 public:
  /// One of `root`; null when that store cannot be cloned. Throws Error(kStore) when its server has ended, or does not answer
  /// until `deadline`; Error(kUnavailable) without a descriptor.
  c10::intrusive_ptr<c10d::Store> take(const c10::intrusive_ptr<c10d::Store>& root, Deadline deadline);

  /// What take() gave, for the next user; not after an error.
  void give_back(const c10::intrusive_ptr<c10d::Store>& root, c10::intrusive_ptr<c10d::Store> clone);

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> root_;  // of the idle ones
  std::vector<c10::intrusive_ptr<c10d::Store>> idle_;
};

/// atl::Store over torch's, with `prefix` in front of every key. Uses a clone, so that a wait here never holds up another
/// user of the same store; where the store cannot be cloned, the store itself. `deadline`: for whatever brings none. A server
/// that does not answer is Error(kStore).
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
  bool is_own_;  // a clone that nobody else uses
  bool has_failed_ = false;
  std::string prefix_;
};

/// `store` without the prefix that torch adds for the device a backend is made for ("cpu/"): ranks of one group may be made for
/// different devices, and their keys must meet.
c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store>& store);

/// The store below all prefixes: the same for every group of the job.
c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store);

/// What all of torch's prefixes put in front of a key, "" for none.
std::string prefixes_of(const c10::intrusive_ptr<c10d::Store>& store);

/// Host name of a TCPStore's server, else "".
std::string host_of(const c10::intrusive_ptr<c10d::Store>& root);

/// How often a group of `size` ranks has met before under `key`: every rank of one meeting gets the same number, so that a group
/// made anew in the same store does not read the old one's keys. One round trip; every rank calls it once per meeting. Throws
/// Error(kStore), at `deadline` at the latest.
std::int64_t count_meetings(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key, int size,
                            Deadline deadline);

/// The first value that anybody of the job proposes under `key`. Throws Error(kStore), at `deadline` at the latest.
std::vector<std::byte> agree(const c10::intrusive_ptr<c10d::Store>& root, const std::string& key,
                             const std::vector<std::byte>& proposal, Deadline deadline);

/// The store that an island's library meets in while it is made, with all of torch's prefixes of `store`, then `prefix`, in front
/// of its keys: waits there end with the error of `group` once that has failed, for then somebody will never come.
/// `timeout`: of waits that bring none, and for the server's answers.
c10::intrusive_ptr<c10d::Store> store_for_library(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::string& prefix, std::chrono::milliseconds timeout,
                                                  std::weak_ptr<collectives::Group> group);

}  // namespace atl::pytorch
