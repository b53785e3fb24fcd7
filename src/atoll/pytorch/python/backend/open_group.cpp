// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/open_group.h"

#include <utility>

#include "atoll/core/fd.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

OpenGroup::OpenGroup(Parts parts, c10::intrusive_ptr<c10d::Backend::Options> options)
    : options_(std::move(options)), rank_(parts.group->rank()), made_in_(fork_depth()), parts_(std::move(parts)) {}

OpenGroup::Parts OpenGroup::open_parts() const {
  if (is_inherited()) {
    throw_as_torch(
        Error(ErrorKind::kUnavailable,
              "process group \"" + name() + "\" belongs to the parent of this forked process and cannot be used here"));
  }
  const std::lock_guard lock(mutex_);
  if (!parts_.group) {
    throw_as_torch(
        Error(ErrorKind::kAborted, "process group \"" + name() + "\" was shut down on rank " + std::to_string(rank_)));
  }
  return parts_;
}

OpenGroup::Parts OpenGroup::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

bool OpenGroup::is_inherited() const noexcept { return made_in_ != fork_depth(); }

// c10d's options hold -1 if the caller set no timeout.
std::chrono::milliseconds OpenGroup::timeout(std::chrono::milliseconds stated) const {
  return stated < std::chrono::milliseconds(0) ? options_->timeout : stated;
}

void OpenGroup::set_timeout(std::chrono::milliseconds timeout) {
  group()->set_timeout(timeout);
  options_->timeout = timeout;
}

template <typename Content>
c10::intrusive_ptr<WorkAtoll> OpenGroup::make_work(const About& about, Content content, const Tensors& inputs,
                                                   Tensors outputs) const {
  const Parts open = open_parts();
  const WorkFacts facts{about.type, about.title, rank_, open.group->sequence()};
  return c10::make_intrusive<WorkAtoll>(facts, inputs, std::move(outputs), std::move(content),
                                        open.process->completions, open.process->watchdog, open.group);
}

c10::intrusive_ptr<WorkAtoll> OpenGroup::new_work(const About& about, Operands operands, const Tensors& inputs,
                                                  Tensors outputs) const {
  return make_work(about, std::move(operands), inputs, std::move(outputs));
}

c10::intrusive_ptr<WorkAtoll> OpenGroup::new_work(const About& about, std::shared_ptr<StagedOperation> operation,
                                                  const Tensors& inputs, Tensors outputs) const {
  return make_work(about, std::move(operation), inputs, std::move(outputs));
}

OpenGroup::Parts OpenGroup::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(parts_, {});
}

}  // namespace atl::pytorch
