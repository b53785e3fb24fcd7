// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/backend.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/pytorch/python/backend/checks.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/process/arena.h"

namespace atl::pytorch {
namespace {

// Groups that are open, for shut_down_all(). Never destroyed: backends may outlive static objects.
struct OpenGroups {
  std::mutex mutex;
  std::vector<BackendAtoll*> backends;  // in the order of creation
};

OpenGroups& open_groups() {
  static auto* groups = new OpenGroups;
  return *groups;
}

std::atomic<bool> tensor_alloc_has_stopped{false};

// Never destroys what a forked child has inherited, because it belongs to threads that the child does not have.
template <typename Pointer>
void leak(Pointer&& pointer) {
  new std::decay_t<Pointer>(std::forward<Pointer>(pointer));
}

std::string key_prefix(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int size,
                       Deadline deadline) {
  const std::string base = "atoll/" + std::to_string(attempt()) + "/";
  return base + std::to_string(count_meetings(store, base + name + "/arrivals", size, deadline)) + "/";
}

OpenGroup::Parts meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      const BackendAtoll::Options& options, int global_rank, const Place& place) {
  const Deadline deadline = Deadline::after(options.timeout);
  OpenGroup::Parts parts;
  parts.process = join_process(store, global_rank, deadline);
  const std::string island = island_label(*parts.process->context, place);
  collectives::GroupOptions group = group_options();
  group.rank = rank;
  group.size = size;
  group.name = options.group_name.empty() ? "group" : options.group_name;
  group.island = island;
  group.device = place.device;
  group.library = place.library;
  group.problem = place.problem;
  group.timeout = options.timeout;
  group.prepare_thread = prepare_thread;
  StoreAdaptor meeting_place(store, key_prefix(store, group.name, size, deadline), parts.process->store_clones,
                             deadline);
  parts.group = std::make_shared<collectives::Group>(parts.process->context, meeting_place, group);
  return parts;
}

}  // namespace

BackendAtoll::BackendAtoll(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           c10::intrusive_ptr<Options> options, int global_rank, Place place)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      global_rank_(global_rank),
      place_(std::move(place)),
      open_(translated([&] {
        return std::make_shared<OpenGroup>(
            meet(without_device_prefix(store), rank, size, *options_, global_rank, place_), options_);
      })),
      island_(std::make_shared<IslandLibrary>(*this, open_, place_)),
      regions_(open_, island_),
      staging_(open_, island_, regions_),
      pass_through_(open_, island_, regions_, staging_),
      island_messages_(open_, island_, regions_, staging_) {
  translated([&] { island_->join(without_device_prefix(store)); });
  init();
  const std::lock_guard lock(open_groups().mutex);
  open_groups().backends.push_back(this);
}

bool BackendAtoll::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0 && place_.device == "cpu" && !tensor_alloc_has_stopped && group()->can_lend();
}

void BackendAtoll::stop_tensor_alloc() noexcept { tensor_alloc_has_stopped = true; }

at::Tensor BackendAtoll::allocateTensor(long size, at::TensorOptions options) {  // NOLINT: torch's type
  if (!options.device().is_cpu()) return at::empty({size}, options);
  return empty_in_arena({size}, c10::typeMetaToScalarType(options.dtype()));
}

std::shared_ptr<c10::Allocator> BackendAtoll::getMemAllocator() { return arena_allocator(); }

BackendAtoll::~BackendAtoll() { BackendAtoll::release_resources(); }

void BackendAtoll::release_resources() {
  {
    const std::lock_guard lock(open_groups().mutex);
    std::erase(open_groups().backends, this);
  }
  close(take(), /*orderly=*/false);
}

BackendAtoll::Parts BackendAtoll::take() {
  const std::lock_guard lock(mutex_);  // the thread that takes the group takes all of its parts
  Parts parts;
  parts.open = open_->take();
  parts.library = island_->take();
  parts.queues = staging_.take();
  if (!open_->is_inherited()) return parts;
  leak(std::move(parts));
  return {};
}

// Called while a failure of the group still ends all waits.
void BackendAtoll::drain(Parts& parts) {
  const auto& group = parts.open.group;
  const auto limit = Deadline::after(collectives::kMaxDrain);
  const auto has_failed = [&] { return group->error() != nullptr; };
  bool all = true;
  for (auto& [device, queue] : parts.queues) all = all && queue->drain(limit, has_failed);
  if (parts.library) {  // whose own shutdown may wait without limit for an operation
    all = all && parts.library->in_flight().drain(limit, has_failed);
    all = all && parts.open.process->watchdog->drain(group.get(), limit, has_failed);
  }
  if (!all) group->fail(Error(ErrorKind::kAborted, "the group was shut down while operations were under way"));
}

void BackendAtoll::close(Parts parts, bool orderly) noexcept {
  const ReleaseGil others_may_need_it;
  Parts ended = std::move(parts);  // so that they are destroyed without the GIL too
  auto& [process, group] = ended.open;
  if (!group) return;
  try {
    if (orderly) drain(ended);
    const bool failed = group->error() != nullptr;
    if (!orderly) {
      if (ended.library) process->watchdog->forget(group.get());  // so that no thread is interrupted
      group->abort(
          "the group was destroyed without shutdown");  // it may outlive this, held by pending sends for example
    }
    group->shutdown();
    for (auto& [device, queue] : ended.queues) queue->close();
    if (ended.library) {
      orderly && !failed ? ended.library->shutdown() : ended.library->abort();
      process->watchdog->forget(group.get());
    }
    ended.library.reset();
    group.reset();
    process.reset();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("while closing a process group: ") + error.what());
  }
}

void BackendAtoll::shutdown() { close(take(), /*orderly=*/true); }

void BackendAtoll::shut_down_all() noexcept {
  // A backend stays valid while the lock is held, because its destructor takes it; closing must wait without the lock.
  std::vector<Parts> all;
  {
    const std::lock_guard lock(open_groups().mutex);
    const auto& backends = open_groups().backends;
    for (auto each = backends.rbegin(); each != backends.rend(); ++each) all.push_back((*each)->take());
  }
  for (Parts& parts : all) close(std::move(parts), /*orderly=*/true);
}

void BackendAtoll::abort() {
  if (open_->is_inherited()) return;
  const auto group = open_->parts().group;
  if (group) group->abort("abort() was called on process group \"" + options_->group_name + "\"");
}

c10d::ErrorType BackendAtoll::getError() {
  const auto error = group()->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    if (known.kind() == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
    if (known.kind() == ErrorKind::kPeerLost) return c10d::ErrorType::REMOTE_ERROR;
  } catch (...) {
  }
  return c10d::ErrorType::COMM_ERROR;
}

bool BackendAtoll::supportsSplitting() const {
  const auto& devices = group()->topology().devices;
  return std::all_of(devices.begin(), devices.end(),
                     [&](const std::string& device) { return (device == "cpu") == (devices.front() == "cpu"); });
}

c10::intrusive_ptr<c10d::Backend> BackendAtoll::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  for (const int rank : ranks) check_rank("split", "rank", rank, size_);
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : options_->timeout);
  if (opts) {
    options->group_name = opts->group_name;
    options->group_desc = opts->group_desc;
    options->global_ranks_in_group = opts->global_ranks_in_group;
  }
  // Torch calls this once for every device type of the parent; all of them share one backend.
  {
    const std::lock_guard lock(mutex_);
    const auto known = splits_.find(options->group_name);
    if (known != splits_.end()) {
      if (auto child = known->second.lock()) return child;
    }
  }
  auto child = c10::make_intrusive<BackendAtoll>(store, static_cast<int>(mine - ranks.begin()),
                                                 static_cast<int>(ranks.size()), options, global_rank_, place_);
  c10::weak_intrusive_ptr<BackendAtoll> known(child);
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = splits_.try_emplace(options->group_name, known);
  if (!is_new) place->second.swap(known);  // an earlier child of that name is destroyed without the lock
  return child;
}

}  // namespace atl::pytorch
