// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/collectives/library_step.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/staging/issuer.h"
#include "atoll/pytorch/staging/passage.h"

namespace atl::pytorch {

/// The steps of one group's island library, in the order that the island's ranks share (collectives/group/island_order.h): each is run
/// by the group's issuer in its turn. Thread-safe.
class LibraryQueue : public std::enable_shared_from_this<LibraryQueue> {
 public:
  /// Works on while the group is being closed.
  explicit LibraryQueue(const OpenGroup::Parts& open) : group_(open.group), completions_(open.process->completions) {}

  const std::shared_ptr<Issuer>& issuer() const noexcept { return issuer_; }

  /// `request.go`, which may block, is called by the issuer in the step's turn, or with an error; never where the group is gone.
  void enter(collectives::StepRequest request);

  /// For passages, whose group has failed where a turn does not come.
  LibraryTurns turns();

  /// Lets a thread that may block run the issuer.
  void run_soon() const;

 private:
  const std::weak_ptr<collectives::Group> group_;
  const std::weak_ptr<Completions> completions_;
  const std::shared_ptr<Issuer> issuer_ = std::make_shared<Issuer>();
};

}  // namespace atl::pytorch
