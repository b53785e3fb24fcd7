// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/island_library.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/backend/library_work.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/process/device_threads.h"
#include "atoll/pytorch/staging/plain_text.h"
#include "atoll/pytorch/staging/stream_work.h"

namespace atl::pytorch {
namespace {

// After its library could not be made, a rank waits this long for another rank's report before it sends its own.
constexpr std::chrono::milliseconds kWaitForReport{200};
constexpr std::chrono::milliseconds kConnectPollInterval{5};

void interrupt_dependents(const std::weak_ptr<Watchdog>& weak_watchdog,
                          const std::weak_ptr<collectives::Group>& weak_group) {
  const auto watchdog = weak_watchdog.lock();
  const auto group = weak_group.lock();
  if (!watchdog || !group) return;
  try {
    std::rethrow_exception(group->error());
  } catch (const Error& error) {
    watchdog->fail_owner(group.get(), error);
  } catch (const std::exception& error) {
    log(LogLevel::kError, "could not interrupt the threads that rely on an island's library: " + plain_text(error));
  }
}

// The ranks of an island, with a note that the library's errors number them from 0.
std::string as_counted(const std::vector<int>& members) {
  std::string text = members.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < members.size(); ++i) text.append(i > 0 ? ", " : "").append(std::to_string(members[i]));
  return text.append(", which it counts from 0");
}

// Libraries exit the process, or retry for longer than the other ranks wait, when descriptors run out.
void require_descriptors(const LibraryRequest& request) {
  const std::uint64_t wanted = 16 + 4 * static_cast<std::uint64_t>(request.size);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::error_code unreadable;
  std::uint64_t used = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", unreadable)) {
    used += std::strtoull(entry.path().filename().c_str(), nullptr, 10) < limit.rlim_cur;
  }
  if (unreadable) used = limit.rlim_cur;
  if (used + wanted <= limit.rlim_cur) return;
  throw Error(ErrorKind::kUnavailable, std::to_string(limit.rlim_cur - used) + " of " + std::to_string(limit.rlim_cur) +
                                           " file descriptors are left, and it may need " + std::to_string(wanted) +
                                           ": raise the limit (ulimit -n)");
}

std::weak_ptr<Watchdog> watchdog_of(const OpenGroup& open) {
  const auto process = open.process();
  return process ? process->watchdog : nullptr;
}

// Aborting lets streams continue, so the threads that rely on them are interrupted first. This takes time, during which
// the process may be destroyed on another thread.
void end_library(const std::weak_ptr<Library>& weak_library, const std::weak_ptr<Watchdog>& watchdog,
                 const std::weak_ptr<collectives::Group>& group) {
  const auto library = weak_library.lock();
  if (!library) return;
  interrupt_dependents(watchdog, group);
  library->abort();
}

}  // namespace

IslandLibrary::IslandLibrary(c10d::Backend& owner, std::shared_ptr<OpenGroup> open, Place place)
    : owner_(owner), open_(std::move(open)), place_(std::move(place)) {}

LibraryRequest IslandLibrary::request(const c10::intrusive_ptr<c10d::Store>& store, std::size_t island) const {
  const auto group = open_->group();
  const auto& topology = group->topology();
  const auto& members = topology.islands[island];
  LibraryRequest request;
  request.library = topology.libraries[island];
  request.device = place_.device;
  request.rank = static_cast<int>(std::find(members.begin(), members.end(), open_->rank()) - members.begin());
  request.size = static_cast<int>(members.size());
  request.timeout = open_->options().timeout;  // operations have their own
  request.group_name = group->options().name + "/" + topology.labels[island] + "/";
  request.store = store_for_library(store,
                                    "atoll/" + std::to_string(attempt()) + "/library/" + std::to_string(group->id()) +
                                        "/" + std::to_string(island) + "/",
                                    request.timeout, group);
  const auto& known = open_->options().global_ranks_in_group;
  for (const int member : members) {
    const auto place = static_cast<std::size_t>(member);
    request.global_ranks.push_back(place < known.size() ? static_cast<int>(known[place]) : member);
  }
  return request;
}

// On a thread of its own, which is left behind if another rank does not come: the library cannot be interrupted.
void IslandLibrary::connect(const std::shared_ptr<Library>& library, const collectives::Group& group,
                            Deadline deadline) {
  std::packaged_task<void()> task([library] {
    pthread_setname_np(pthread_self(), "atoll-connect");
    prepare_thread();
    library->connect();
  });
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  while (done.wait_for(kConnectPollInterval) != std::future_status::ready) {
    if (const auto error = group.error()) std::rethrow_exception(error);
    if (deadline.expired()) throw Error(ErrorKind::kTimeout, "not all of them have connected in time");
  }
  done.get();
}

void IslandLibrary::join(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto group = open_->group();
  const auto& topology = group->topology();
  const auto island = static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(open_->rank())]);
  const auto& members = topology.islands[island];
  const bool alone = topology.islands.size() == 1 && !topology.flat_reduce;
  const bool has_work = members.size() > 1 ? alone || topology.has_leads() : alone && place_.named;
  if (topology.libraries[island].empty() || !has_work) return;
  const LibraryRequest wanted = request(store, island);
  // Two ranks of an island may never exchange anything except through the library. This rank must still notice when the
  // next one dies, or fails before it has joined the others in the library.
  if (members.size() > 1) group->watch(members[(static_cast<std::size_t>(wanted.rank) + 1) % members.size()]);
  if (!alone) group->open_island_order();
  try {
    require_descriptors(wanted);
    const Deadline deadline = Deadline::after(wanted.timeout);
    const auto library = std::make_shared<Library>(place_, wanted);
    if (place_.device != "cpu") connect(library, *group, deadline);
    library_ = library;
    has_all_ranks_.store(alone);
  } catch (const std::exception& error) {
    const std::string why = plain_text(error);
    const Error told(ErrorKind::kUnavailable, "rank " + std::to_string(open_->rank()) + " could not join the " +
                                                  wanted.library + " communicator of island \"" +
                                                  topology.labels[island] + "\" (" + as_counted(members) +
                                                  "): " + why.substr(0, why.find("\n\nAt:\n")));  // Python's trace
    std::rethrow_exception(account_of_library_failure(*group, told, kWaitForReport));
  }
  const auto process = open_->process();
  group->when_failed([library = std::weak_ptr<Library>(library_), watchdog = std::weak_ptr<Watchdog>(process->watchdog),
                      completions = std::weak_ptr<Completions>(process->completions),
                      group = std::weak_ptr<collectives::Group>(group)] {
    // Any thread of Process may run this, so Process must not be destroyed here.
    const auto live = completions.lock();
    if (live) live->post([=] { end_library(library, watchdog, group); }, /*urgent=*/true);
  });
}

std::shared_ptr<Library> IslandLibrary::get() const {
  const std::lock_guard lock(mutex_);
  return library_;
}

std::string IslandLibrary::name() const {
  const auto library = get();
  return library ? library->name() : "";
}

Watchdog::EntryPtr IslandLibrary::watch(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) const {
  const auto library = get();
  auto [process, group] = open_->parts();
  if (works.empty() || !library || !group || library->device_type() == c10::kCPU) return nullptr;
  const auto watchdog = process->watchdog;
  process.reset();
  Watchdog::Entry entry;
  entry.owner = group.get();
  entry.works = works;
  entry.library = library;
  entry.what = "an operation of the library " + library->name() + " on rank " + std::to_string(open_->rank());
  entry.deadline = Deadline::after(open_->timeout(timeout));
  entry.fail = [weak = std::weak_ptr<collectives::Group>(group)](const Error& error) {
    if (const auto live = weak.lock()) live->fail(error);
  };
  auto added = watchdog->add(std::move(entry));
  if (const auto error = group->error()) {  // the failure may have come before the entry: no interrupt is sent for it
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      watchdog->fail_entry(added, known);
    }
  }
  return added;
}

void IslandLibrary::watch_results(const std::shared_ptr<StagedOperation>& operation,
                                  std::chrono::milliseconds timeout) const {
  if (!operation->on_accelerator()) return;
  const auto entry = watch(operation->outward().works(), timeout);
  if (!entry) return;
  operation->on_reliance([watchdog = watchdog_of(*open_), entry](bool is_future) {
    const auto live = watchdog.lock();
    if (live) is_future ? live->note_future(entry) : live->note_reliance(entry);
  });
}

WorkPtr IslandLibrary::work_of(std::vector<WorkPtr> works, Watchdog::EntryPtr entry) {
  const auto keeps_alive = c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&owner_);
  const auto library = get();
  if (library && library->device_type() == c10::kCPU) library->in_flight().note(works);
  return c10::make_intrusive<LibraryWork>(
      std::move(works), [this, keeps_alive](const std::exception_ptr& error) { explain(error); }, watchdog_of(*open_),
      std::move(entry), library ? library->waiter() : nullptr);
}

WorkPtr IslandLibrary::watched_work_of(std::vector<WorkPtr> returned, c10::Device device,
                                       std::chrono::milliseconds timeout) {
  const auto library = get();
  try {
    const bool is_on_stream = std::erase(returned, nullptr) > 0;
    if (is_on_stream && library && !device.is_cpu()) {
      returned.push_back(c10::make_intrusive<StreamWork>(device));
    }
  } catch (...) {
    explain(std::current_exception());
  }
  auto entry = watch(returned, timeout);
  return work_of(std::move(returned), std::move(entry));
}

void IslandLibrary::report_refusal(const std::exception& why) const {
  const auto group = open_->group();
  group->fail(Error(ErrorKind::kMismatch, "the library " + place_.library + " refused an operation on rank " +
                                              std::to_string(open_->rank()) + ": " + plain_text(why)));
  note_raised(watchdog_of(*open_), *group);
}

// The group knows which rank has died; the library does not.
void IslandLibrary::explain(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const c10::ValueError& refused) {
    report_refusal(refused);
    throw;
  } catch (const c10::TypeError& refused) {
    report_refusal(refused);
    throw;
  } catch (const std::exception& known) {
    const Error told(ErrorKind::kPeerLost, "the library " + place_.library + " failed: " + plain_text(known));
    const auto group = open_->group();
    const auto account = account_of_library_failure(*group, told);
    note_raised(watchdog_of(*open_), *group);
    std::rethrow_exception(as_torch(account));
  }
}

std::shared_ptr<Library> IslandLibrary::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(library_, nullptr);
}

}  // namespace atl::pytorch
