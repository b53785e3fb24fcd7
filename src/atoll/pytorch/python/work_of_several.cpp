// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/work_of_several.h"

#include <algorithm>

namespace atl::pytorch {

bool WorkOfSeveral::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
}

bool WorkOfSeveral::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr WorkOfSeveral::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) return error;
  }
  return nullptr;
}

bool WorkOfSeveral::wait(std::chrono::milliseconds timeout) {
  std::exception_ptr first;
  for (const auto& part : parts_) {
    try {
      part->wait(timeout);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return true;
}

void WorkOfSeveral::synchronize() {
  for (const auto& part : parts_) part->synchronize();
}

void WorkOfSeveral::abort() {
  for (const auto& part : parts_) part->abort();
}

std::vector<at::Tensor> WorkOfSeveral::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    const auto some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOfSeveral::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace atl::pytorch
