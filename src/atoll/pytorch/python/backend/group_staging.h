// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/library_queue.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/python/backend/regions.h"
#include "atoll/pytorch/python/backend/staged_call.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/staging_queue.h"

namespace atl::pytorch {

/// Issues a group's staged operations: those whose tensors go to the bridge and back from an accelerator, through
/// pinned memory, or through the island's library. Has one staging queue per device. Thread-safe.
class GroupStaging {
 public:
  using ByDevice = std::unordered_map<c10::Device, std::shared_ptr<StagingQueue>>;

  /// `regions` must be those of the same group.
  GroupStaging(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions);

  /// Returns the library for the island's part of a call that crosses the bridge, or null. It depends on the call
  /// alone, so the ranks of an island agree.
  std::shared_ptr<Library> library_for(const collectives::Call& call, const Operands& operands) const;

  /// Issues an operation that consists of these calls, in order.
  WorkPtr issue(const About& about, const std::vector<collectives::Call>& calls, Operands operands,
                const Tensors& inputs, Tensors outputs);

  /// The streams that copy the group's tensors between `device` and the host.
  std::shared_ptr<const CopyStreams> streams(c10::Device device) { return queue(device)->streams(); }

  /// The clock of the group's copies between devices and the host.
  const std::shared_ptr<StagingClock>& clock() const noexcept { return clock_; }

  /// The queue through which the group uses its island's library.
  const std::shared_ptr<LibraryQueue>& library_queue() const noexcept { return library_queue_; }

  /// Returns the queues, which the caller closes with the group, and forgets them.
  ByDevice take();

 private:
  std::shared_ptr<StagingQueue> queue(c10::Device device);
  std::vector<StagingQueue::EntryPtr> enqueue(const std::vector<collectives::Call>& calls,
                                              const std::shared_ptr<StagedIssue>& issue, StagingQueue& queue,
                                              std::optional<std::uint64_t>& number);

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  const std::shared_ptr<LibraryQueue> library_queue_;
  const std::shared_ptr<StagingClock> clock_ = std::make_shared<StagingClock>();
  Regions& regions_;
  std::mutex mutex_;
  ByDevice queues_;
  std::mutex issue_mutex_;  // makes the order of chunks in a queue that of their calls in the group
};

}  // namespace atl::pytorch
