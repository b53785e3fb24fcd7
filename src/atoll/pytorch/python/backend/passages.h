// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/library_queue.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/python/backend/regions.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/passage.h"

namespace atl::pytorch {

/// A group's operations whose tensors come to the bridge from an accelerator, through pinned memory, or through the island's
/// library, and go back the same way. Thread-safe.
class Passages {
 public:
  using ByDevice = std::unordered_map<c10::Device, std::shared_ptr<Passage>>;

  /// `regions` of the same group.
  Passages(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions);

  /// The library for the island's part of a call that crosses the bridge; null for none. The ranks of an island agree: by the
  /// call alone.
  std::shared_ptr<Library> library_for(const collectives::Call& call, const Operands& operands) const;

  /// Issues an operation that is these calls, in order.
  WorkPtr issue(const About& about, const std::vector<collectives::Call>& calls, Operands operands,
                const Tensors& inputs, Tensors outputs);

  /// On which the group's tensors travel between `device` and the host.
  std::shared_ptr<const CopyStreams> streams(c10::Device device) { return passage(device)->streams(); }

  /// Of the group's copies between devices and the host.
  const std::shared_ptr<StagingClock>& clock() const noexcept { return clock_; }

  /// Through which the group uses its island's library.
  const std::shared_ptr<LibraryQueue>& queue() const noexcept { return queue_; }

  /// What is to be closed with the group.
  ByDevice take();

 private:
  std::shared_ptr<Passage> passage(c10::Device device);

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  const std::shared_ptr<LibraryQueue> queue_;
  const std::shared_ptr<StagingClock> clock_ = std::make_shared<StagingClock>();
  Regions& regions_;
  std::mutex mutex_;
  ByDevice passages_;
  std::mutex issue_mutex_;  // the order of pieces in a passage is that of their calls in the group
};

}  // namespace atl::pytorch
