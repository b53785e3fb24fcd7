// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

/// The island's library when all ranks are one island and it may do the whole operation: an answer that all ranks share.
std::shared_ptr<Library> BackendAtoll::whole_library(const Tensors& tensors, const Reduction* how) const {
  if (!has_whole_library_.load(std::memory_order_relaxed) || tensors.empty()) return nullptr;
  auto library = this->library();
  const at::Tensor& tensor = tensors.front();
  if (!library || tensor.device().type() != library->device_type()) return nullptr;
  return !how || library->reduces(how->op, tensor.scalar_type()) ? library : nullptr;
}

/// The library for a message inside an island of accelerators. On the CPU Atoll's own links serve.
std::shared_ptr<Library> BackendAtoll::message_library(const at::Tensor& tensor, int peer) const {
  if (tensor.device().is_cpu()) return nullptr;
  auto library = this->library();
  if (!library || tensor.device().type() != library->device_type()) return nullptr;
  return group()->topology().same_island(rank_, peer) ? library : nullptr;
}

const std::vector<int>& BackendAtoll::island() const {
  const auto& topology = group()->topology();
  return topology.islands[static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank_)])];
}

// Nothing begins in a group that has failed.
void BackendAtoll::begin_passing() {
  if (const auto error = group()->error()) std::rethrow_exception(as_torch(error));
}

// Whoever gave strided tensors waits here until they can be filled: on an accelerator only its current stream does.
BackendAtoll::WorkPtr BackendAtoll::with_copies(const PlainTensors& plain, const WorkPtr& work) {
  if (plain.needs_copy_back()) {
    work->wait();
    plain.copy_back();
  }
  return work;
}

/// Whether the calling thread is in a coalescing region that the library takes part in.
bool BackendAtoll::open_region_of(const std::shared_ptr<Library>& library) {
  if (!coalescing() || !library->in().supportsCoalescing()) return false;
  const std::lock_guard lock(regions_mutex_);
  Region& region = regions_[std::this_thread::get_id()];
  if (!region.library) {
    library->in().startCoalescing();
    region.library = library;
  }
  return true;
}

}  // namespace atl::pytorch
