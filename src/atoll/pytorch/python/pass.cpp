// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/pytorch/inner/plain_text.h"
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/library_failure.h"
#include "atoll/pytorch/python/work_of_library.h"

namespace atl::pytorch {

/// The island's library when all ranks are one island and it may do the whole operation: an answer that all ranks share.
std::shared_ptr<Library> BackendAtoll::whole_library(const Tensors& tensors, const Reduction* how) const {
  if (!has_whole_library_.load(std::memory_order_relaxed) || tensors.empty()) return nullptr;
  auto library = this->library();
  const at::Tensor& tensor = tensors.front();
  if (!library || tensor.device().type() != library->device_type()) return nullptr;
  const bool knows_all = !how || std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return library->reduces(how->op, each.scalar_type());
  });
  return knows_all ? library : nullptr;
}

/// The library for a message inside an island of accelerators. On the CPU Atoll's own links serve.
std::shared_ptr<Library> BackendAtoll::message_library(const at::Tensor& tensor, int peer) const {
  if (tensor.device().is_cpu()) return nullptr;
  auto library = this->library();
  if (!library || tensor.device().type() != library->device_type()) return nullptr;
  return group()->topology().same_island(rank_, peer) ? library : nullptr;
}

/// The same for lists with one tensor per rank, which Gloo takes in equal sizes only. All ranks know the sizes.
std::shared_ptr<Library> BackendAtoll::list_library(const Tensors& tensors, const Reduction* how) const {
  auto library = whole_library(tensors, how);
  const bool equal = std::all_of(tensors.begin(), tensors.end(),
                                 [&](const at::Tensor& each) { return each.numel() == tensors.front().numel(); });
  return equal || !tensors.front().device().is_cpu() ? library : nullptr;
}

const std::vector<int>& BackendAtoll::island() const {
  const auto& topology = group()->topology();
  return topology.islands[static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank_)])];
}

// Nothing begins in a group that has failed.
void BackendAtoll::begin_passing() {
  if (const auto error = group()->error()) std::rethrow_exception(as_torch(error));
}

// What c10d's options say; they hold -1 where the caller said nothing.
std::chrono::milliseconds BackendAtoll::own_or_group(std::chrono::milliseconds timeout) const {
  return timeout < std::chrono::milliseconds(0) ? options_->timeout : timeout;
}

BackendAtoll::WorkPtr BackendAtoll::of_library(std::vector<WorkPtr> works, Watch::EntryPtr entry) {
  auto self = c10::intrusive_ptr<BackendAtoll>::unsafe_reclaim_from_nonowning(this);
  const auto process = this->process();
  auto watch = process ? std::shared_ptr<Watch>(process, &process->watch) : nullptr;
  return c10::make_intrusive<WorkOfLibrary>(
      std::move(works), [self = std::move(self)](const std::exception_ptr& error) { self->explain(error); },
      std::move(watch), std::move(entry));
}

// Of a library on an accelerator; null for others.
Watch::EntryPtr BackendAtoll::watch_over(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) {
  const auto library = this->library();
  const auto process = this->process();
  if (works.empty() || !library || !process || library->device_type() == c10::kCPU) return nullptr;
  Watch::Entry entry;
  entry.owner = library.get();
  entry.works = works;
  entry.what = "an operation of the library " + library->name() + " on rank " + std::to_string(rank_);
  entry.deadline = Deadline::after(own_or_group(timeout));
  entry.fail = [group = std::weak_ptr<collectives::Group>(group())](const Error& error) {
    if (const auto live = group.lock()) live->fail(error);
  };
  auto added = process->watch.add(std::move(entry));
  if (const auto failed = this->group()->error()) {  // perhaps the watch has been told before
    try {
      std::rethrow_exception(failed);
    } catch (const Error& error) {
      process->watch.give_up(library.get(), error);
    }
  }
  return added;
}

// A wrong argument is the caller's. Anything else ends the group; who has died is known to it rather than to the library.
void BackendAtoll::explain(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::TypeError&) {
    throw;
  } catch (const std::exception& known) {
    const Error told(ErrorKind::kPeerLost, "the library " + place_.library + " failed: " + plain_text(known));
    std::rethrow_exception(as_torch(account_of_library_failure(*group(), told)));
  }
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
bool BackendAtoll::open_region_of(const std::shared_ptr<Library>& library, std::chrono::milliseconds timeout) {
  if (!coalescing() || !library->in().supportsCoalescing()) return false;
  const std::lock_guard lock(regions_mutex_);
  Region& region = regions_[std::this_thread::get_id()];
  if (!region.library) {
    library->in().startCoalescing();
    region.library = library;
  }
  region.timeout = std::max(region.timeout, timeout);
  return true;
}

}  // namespace atl::pytorch
