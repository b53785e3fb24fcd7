// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/library_queue.h"

#include <string>
#include <utility>

#include "atoll/collectives/describe.h"

namespace atl::pytorch {

void LibraryQueue::enqueue(collectives::StepRequest request) {
  request.go = [self = shared_from_this(), go = std::move(request.go)](const std::exception_ptr& error) {
    self->issuer_->push([go, error] { go(error); });
    self->run_soon();
  };
  if (const auto group = group_.lock()) group->request_step(std::move(request));
}

LibraryTurns LibraryQueue::turns() {
  const auto request = [weak = weak_from_this()](const collectives::LibraryStep& step, std::chrono::milliseconds limit,
                                                 std::function<void(const std::exception_ptr&)> go) {
    const auto self = weak.lock();
    const auto group = self ? self->group_.lock() : nullptr;
    if (!group) return;
    const bool comes = step.kind == collectives::LibraryStep::Kind::kIn;
    const std::string text = "operation #" + std::to_string(collectives::number_of(step.number)) + " on rank " +
                             std::to_string(group->rank()) + " timed out: other ranks of its island have not " +
                             (comes ? "contributed to it" : "requested its result");
    group->request_step({step,
                         [self, go = std::move(go)](const std::exception_ptr& error) {
                           go(error);
                           self->run_soon();
                         },
                         Deadline::after(limit), text});
  };
  const auto give_up = [weak = group_](const collectives::LibraryStep& step) {
    if (const auto group = weak.lock()) group->give_up_step(step);
  };
  return {request, give_up};
}

void LibraryQueue::run_soon() const {
  const auto completions = completions_.lock();
  if (completions) completions->post([issuer = issuer_] { issuer->run(); }, /*urgent=*/true);
}

}  // namespace atl::pytorch
