// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/pass_through.h"

#include <algorithm>

#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

PassThrough::PassThrough(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions,
                         GroupStaging& staging)
    : open_(std::move(open)), island_(std::move(island)), regions_(regions), staging_(staging) {}

std::shared_ptr<Library> PassThrough::for_whole(const Tensors& tensors, const Reduction* how) const {
  if (!island_->has_all_ranks() || tensors.empty()) return nullptr;
  auto library = island_->get();
  if (!library || tensors.front().device().type() != library->device_type()) return nullptr;
  const bool knows_all = !how || std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return library->reduces(how->op, each.scalar_type());
  });
  return knows_all ? library : nullptr;
}

// Gloo takes only lists of tensors of equal size.
std::shared_ptr<Library> PassThrough::for_list(const Tensors& tensors, const Reduction* how) const {
  auto library = for_whole(tensors, how);
  const bool equal = std::all_of(tensors.begin(), tensors.end(),
                                 [&](const at::Tensor& each) { return each.numel() == tensors.front().numel(); });
  return equal || !tensors.front().device().is_cpu() ? library : nullptr;
}

std::shared_ptr<Library> PassThrough::for_rooted(const at::Tensor& tensor) const {
  return tensor.device().is_cpu() ? nullptr : for_whole({tensor});
}

std::shared_ptr<Library> PassThrough::for_message(const at::Tensor& tensor, int peer) const {
  if (tensor.device().is_cpu()) return nullptr;
  auto library = island_->get();
  if (!library || tensor.device().type() != library->device_type()) return nullptr;
  return open_->group()->topology().same_island(open_->rank(), peer) ? library : nullptr;
}

// Throws the error of a group that has failed.
void PassThrough::check_health() const {
  const auto [process, group] = open_->open_parts();
  const auto error = group->error();
  if (!error) return;
  note_raised(process->watchdog, *group);
  std::rethrow_exception(as_torch(error));
}

// Also throws the error of an operation that another rank has refused.
void PassThrough::begin(const PlainTensors& plain) const {
  refuse_capture(plain.device());
  check_health();
  translated([&] { open_->group()->commit(); });
}

void PassThrough::begin_message(const PlainTensors& plain, int peer, bool sends) const {
  refuse_capture(plain.device());
  check_health();
  translated([&] { open_->group()->commit_message(peer, sends); });
}

WorkPtr PassThrough::work_of(std::vector<WorkPtr> works, const PlainTensors& plain, std::chrono::milliseconds timeout) {
  WorkPtr work = island_->watched_work_of(std::move(works), plain.device(), timeout);
  fill(plain, *work);
  regions_.note(work);
  return work;
}

}  // namespace atl::pytorch
