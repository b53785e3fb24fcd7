// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend.h"

#include <algorithm>
#include <set>

#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/pytorch/python/checks.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {
namespace {

// Groups that are open, for shut_down_all(). Never destroyed: backends may outlive static objects.
struct OpenGroups {
  std::mutex mutex;
  std::set<BackendAtoll*> backends;
};

OpenGroups& open_groups() {
  static auto* groups = new OpenGroups;
  return *groups;
}

// What a forked child inherited belongs to threads that are not there: it is never destroyed.
template <typename Pointer>
void leak(Pointer&& pointer) {
  new std::decay_t<Pointer>(std::forward<Pointer>(pointer));
}

std::string key_prefix(c10d::Store& store, const std::string& name, int size) {
  const std::string base = "atoll/" + std::to_string(attempt()) + "/";
  return base + std::to_string(count_meetings(store, base + name + "/arrivals", size)) + "/";
}

}  // namespace

BackendAtoll::BackendAtoll(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           c10::intrusive_ptr<Options> options, int global_rank, Place place)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      global_rank_(global_rank),
      place_(std::move(place)),
      made_in_(fork_depth()) {
  translated([&] {
    const auto shared = without_device_prefix(store);
    process_ = join_process(shared, global_rank);
    collectives::GroupOptions group;
    group.rank = rank;
    group.size = size;
    group.name = options_->group_name.empty() ? "group" : options_->group_name;
    group.island = island_label(*process_->context, place_);
    group.device = place_.device;
    group.library = place_.library;
    group.problem = place_.problem;
    group.uplink = uplink();
    group.flat_reduce = flat_reduce();
    group.timeout = options_->timeout;
    StoreAdaptor meeting_place(shared, key_prefix(*shared, group.name, size), process_->store_clones);
    group_ = std::make_shared<collectives::Group>(process_->context, meeting_place, group);
    join_library(shared);
  });
  init();
  const std::lock_guard lock(open_groups().mutex);
  open_groups().backends.insert(this);
}

BackendAtoll::~BackendAtoll() {
  {
    const std::lock_guard lock(open_groups().mutex);
    open_groups().backends.erase(this);
  }
  close(take(), /*orderly=*/false);
}

std::shared_ptr<collectives::Group> BackendAtoll::group() const {
  if (made_in_ != fork_depth()) {
    throw_as_torch(
        Error(ErrorKind::kUnavailable, "process group \"" + options_->group_name +
                                           "\" belongs to the parent of this forked process and cannot be used here"));
  }
  const std::lock_guard lock(mutex_);
  if (!group_) {
    throw_as_torch(Error(ErrorKind::kAborted, "process group \"" + options_->group_name + "\" was shut down on rank " +
                                                  std::to_string(rank_)));
  }
  return group_;
}

std::shared_ptr<Process> BackendAtoll::process() const {
  const std::lock_guard lock(mutex_);
  return process_;
}

BackendAtoll::Parts BackendAtoll::take() {
  Parts parts;
  const std::lock_guard lock(mutex_);
  parts.process.swap(process_);
  parts.group.swap(group_);
  parts.library.swap(library_);
  parts.passages.swap(passages_);
  if (made_in_ == fork_depth()) return parts;
  leak(std::move(parts));
  return {};
}

void BackendAtoll::close(Parts parts, bool orderly) noexcept {
  if (!parts.group) return;
  const ReleaseGil others_may_need_it;
  const bool failed = parts.group->error() != nullptr;
  try {
    if (orderly) parts.group->shutdown();
    for (auto& [device, passage] : parts.passages) passage->close();
    if (parts.library) {
      orderly && !failed ? parts.library->shutdown() : parts.library->abort();
      parts.process->watch.forget(parts.library.get());
    }
    parts.library.reset();
    parts.group.reset();
    parts.process.reset();
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
    for (BackendAtoll* backend : open_groups().backends) all.push_back(backend->take());
  }
  for (Parts& parts : all) close(std::move(parts), /*orderly=*/true);
}

void BackendAtoll::abort() {
  if (made_in_ != fork_depth()) return;
  std::shared_ptr<collectives::Group> group;
  {
    const std::lock_guard lock(mutex_);
    group = group_;
  }
  if (group) group->abort("abort() was called on process group \"" + options_->group_name + "\"");
}

void BackendAtoll::setTimeout(std::chrono::milliseconds timeout) {
  group()->set_timeout(timeout);
  options_->timeout = timeout;
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
  // Torch asks once for every device type of the parent; all of them share one backend.
  {
    const std::lock_guard lock(mutex_);
    const auto known = splits_.find(options->group_name);
    if (known != splits_.end()) {
      if (auto child = known->second.lock()) return child;
    }
  }
  auto child = c10::make_intrusive<BackendAtoll>(store, static_cast<int>(mine - ranks.begin()),
                                                 static_cast<int>(ranks.size()), options, global_rank_, place_);
  const std::lock_guard lock(mutex_);
  splits_.insert_or_assign(options->group_name, c10::weak_intrusive_ptr<BackendAtoll>(child));
  return child;
}

}  // namespace atl::pytorch
