// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/collectives/call.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/staging/issuer.h"
#include "atoll/pytorch/staging/staging_queue.h"

namespace atl::pytorch {

/// The steps of one group's island library, in the order that the island's ranks share
/// (collectives/group/island_order.h). The group's issuer runs each step in its turn. Thread-safe.
class LibraryQueue : public std::enable_shared_from_this<LibraryQueue> {
 public:
  /// Continues to work while the group is being closed.
  explicit LibraryQueue(const OpenGroup::Parts& open) : group_(open.group), completions_(open.process->completions) {}

  const std::shared_ptr<Issuer>& issuer() const noexcept { return issuer_; }

  /// The issuer calls `request.go`, which may block, in the step's turn or with an error; never if the group is gone.
  void enqueue(collectives::StepRequest request);

  /// The turns for staging queues; if a turn does not come, the group has failed.
  LibraryTurns turns();

  /// Runs the issuer on a thread that may block.
  void run_soon() const;

 private:
  const std::weak_ptr<collectives::Group> group_;
  const std::weak_ptr<Completions> completions_;
  const std::shared_ptr<Issuer> issuer_ = std::make_shared<Issuer>();
};

}  // namespace atl::pytorch
