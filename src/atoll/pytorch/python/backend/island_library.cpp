// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/island_library.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/backend/work_of_library.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

// So long after its library could not be made a rank waits for another's account of why, before it tells its own.
constexpr std::chrono::milliseconds kWaitForReport{200};

void tell_who_relies(const std::weak_ptr<Watch>& weak_watch, const std::weak_ptr<collectives::Group>& weak_group) {
  const auto watch = weak_watch.lock();
  const auto group = weak_group.lock();
  if (!watch || !group) return;
  try {
    std::rethrow_exception(group->error());
  } catch (const Error& error) {
    watch->give_up(group.get(), error);
  } catch (const std::exception& error) {
    log(LogLevel::kError, "whoever relies on an island's library was not told of its end: " + plain_text(error));
  }
}

// The library counts an island's ranks from 0, and says so in its errors.
std::string as_counted(const std::vector<int>& members) {
  std::string text = members.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < members.size(); ++i) text.append(i > 0 ? ", " : "").append(std::to_string(members[i]));
  return text.append(", which it counts from 0");
}

// Libraries end the process, or try for longer than anybody waits, where descriptors run out.
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

std::weak_ptr<Watch> watch_of(const OpenGroup& open) {
  const auto process = open.process();
  return process ? process->watch : nullptr;
}

// Aborting lets streams go on, so whoever relies on them is told first. It takes its time, in which the process may end
// elsewhere.
void end_library(const std::weak_ptr<Library>& weak_library, const std::weak_ptr<Watch>& watch,
                 const std::weak_ptr<collectives::Group>& group) {
  const auto library = weak_library.lock();
  if (!library) return;
  tell_who_relies(watch, group);
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
  request.timeout = open_->options().timeout;  // operations bring their own
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

void IslandLibrary::join(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto group = open_->group();
  const auto& topology = group->topology();
  const auto island = static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(open_->rank())]);
  const auto& members = topology.islands[island];
  const bool alone = topology.islands.size() == 1 && !topology.flat_reduce;
  const bool has_work = members.size() > 1 ? alone || topology.has_leads() : alone && place_.named;
  if (topology.libraries[island].empty() || !has_work) return;
  const LibraryRequest wanted = request(store, island);
  // Nothing but the library may ever pass between two ranks of an island: the next one's end must be noticed all the same, and
  // that it has given up before it met the others in the library.
  if (members.size() > 1) group->watch(members[(static_cast<std::size_t>(wanted.rank) + 1) % members.size()]);
  if (!alone) group->open_island_order();
  try {
    require_descriptors(wanted);
    library_ = std::make_shared<Library>(place_, wanted);
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
  group->when_failed([library = std::weak_ptr<Library>(library_), watch = std::weak_ptr<Watch>(process->watch),
                      completions = std::weak_ptr<Completions>(process->completions),
                      group = std::weak_ptr<collectives::Group>(group)] {
    // Any thread of the process's may run this: the process must not end here.
    const auto live = completions.lock();
    if (live) live->post([=] { end_library(library, watch, group); }, /*urgent=*/true);
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

Watch::EntryPtr IslandLibrary::watch(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) const {
  const auto library = get();
  auto [process, group] = open_->parts();
  if (works.empty() || !library || !group || library->device_type() == c10::kCPU) return nullptr;
  const auto watch = process->watch;
  const auto completions = process->completions;
  process.reset();
  Watch::Entry entry;
  entry.owner = group.get();
  entry.works = works;
  entry.what = "an operation of the library " + library->name() + " on rank " + std::to_string(open_->rank());
  entry.deadline = Deadline::after(open_->timeout(timeout));
  entry.fail = [weak = std::weak_ptr<collectives::Group>(group)](const Error& error) {
    if (const auto live = weak.lock()) live->fail(error);
  };
  auto added = watch->add(std::move(entry));
  if (group->error()) {  // perhaps the watch has been told before; and a thread cannot interrupt itself
    completions->post([watch = std::weak_ptr<Watch>(watch),
                       group = std::weak_ptr<collectives::Group>(group)] { tell_who_relies(watch, group); },
                      /*urgent=*/true);
  }
  return added;
}

void IslandLibrary::watch_results(const std::shared_ptr<Trip>& trip, std::chrono::milliseconds timeout) const {
  if (!trip->on_accelerator()) return;
  const auto entry = watch(trip->outward().works(), timeout);
  if (!entry) return;
  trip->on_reliance([watch = watch_of(*open_), entry](bool is_future) {
    const auto live = watch.lock();
    if (live) is_future ? live->note_future(entry) : live->note_reliance(entry);
  });
}

WorkPtr IslandLibrary::work_of(std::vector<WorkPtr> works, Watch::EntryPtr entry) {
  const auto keeps_alive = c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&owner_);
  const auto library = get();
  if (library && library->device_type() == c10::kCPU) library->unfinished().note(works);
  return c10::make_intrusive<WorkOfLibrary>(
      std::move(works), [this, keeps_alive](const std::exception_ptr& error) { explain(error); }, watch_of(*open_),
      std::move(entry), library ? library->waiting() : nullptr);
}

// Who has died is known to the group rather than to the library.
void IslandLibrary::explain(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::TypeError&) {
    throw;
  } catch (const std::exception& known) {
    const Error told(ErrorKind::kPeerLost, "the library " + place_.library + " failed: " + plain_text(known));
    const auto group = open_->group();
    const auto account = account_of_library_failure(*group, told);
    note_told(watch_of(*open_), *group);
    std::rethrow_exception(as_torch(account));
  }
}

std::shared_ptr<Library> IslandLibrary::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(library_, nullptr);
}

}  // namespace atl::pytorch
