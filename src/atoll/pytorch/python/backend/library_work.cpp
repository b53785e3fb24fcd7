// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/library_work.h"

#include <algorithm>

#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

bool LibraryWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
}

bool LibraryWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr LibraryWork::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) return error;
  }
  return nullptr;
}

void LibraryWork::note_reliance() const {
  const auto watchdog = entry_ ? watchdog_.lock() : nullptr;
  if (!watchdog) return;
  try {
    watchdog->note_reliance(entry_);
  } catch (const Error& error) {
    const ReleaseGil interrupter_may_need_it;
    watchdog->note_raised(entry_->owner, error);
    throw_as_torch(error);
  }
}

bool LibraryWork::wait(std::chrono::milliseconds timeout) {
  note_reliance();
  std::exception_ptr first;
  for (const auto& part : parts_) {
    try {
      waiter_ ? waiter_->wait(part, timeout) : static_cast<void>(part->wait(timeout));
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) explain_(first);
  return true;
}

void LibraryWork::synchronize() {
  note_reliance();
  for (const auto& part : parts_) part->synchronize();
}

void LibraryWork::abort() {
  for (const auto& part : parts_) part->abort();
}

std::vector<at::Tensor> LibraryWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    const auto some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

int LibraryWork::sourceRank() const {
  TORCH_CHECK(parts_.size() == 1, "source_rank() is known for a single receive only");
  return parts_.front()->sourceRank();
}

c10::intrusive_ptr<c10::ivalue::Future> LibraryWork::getFuture() {
  if (const auto watchdog = entry_ ? watchdog_.lock() : nullptr) watchdog->note_future(entry_);
  if (parts_.size() == 1) return parts_.front()->getFuture();
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace atl::pytorch
