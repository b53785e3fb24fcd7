// SPDX-License-Identifier: Apache-2.0
// Operations whose tensors come to the bridge from an accelerator or through an island's library; messages.
#include <algorithm>

#include "atoll/pytorch/inner/dtype.h"
#include "atoll/pytorch/inner/pieces.h"
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/library_failure.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kLibraryGrace{2000};

bool is_reduction(collectives::Operation operation) {
  return operation == collectives::Operation::kAllReduce || operation == collectives::Operation::kReduce ||
         operation == collectives::Operation::kReduceScatter;
}

bool is_direct(collectives::Operation operation) {
  return operation == collectives::Operation::kGather || operation == collectives::Operation::kScatter ||
         operation == collectives::Operation::kAllToAll || operation == collectives::Operation::kBarrier;
}

// Aborting lets streams go on, so whoever relies on them is told first.
void end_library(const std::weak_ptr<Library>& weak_library, const std::weak_ptr<Process>& weak_process,
                 const std::weak_ptr<collectives::Group>& weak_group) {
  const auto library = weak_library.lock();
  const auto process = weak_process.lock();
  const auto group = weak_group.lock();
  if (!library) return;
  if (process && group) {
    try {
      std::rethrow_exception(group->error());
    } catch (const Error& error) {
      process->watch.give_up(library.get(), error);
    }
  }
  library->abort();
}

}  // namespace

// Makes the communicators when this rank's island has a library to use, with the other ranks of the island.
void BackendAtoll::join_library(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto& topology = group_->topology();
  const auto island = static_cast<std::size_t>(topology.island_of[static_cast<std::size_t>(rank_)]);
  const auto& members = topology.islands[island];
  const bool alone = topology.islands.size() == 1 && !topology.flat_reduce;
  if (members.size() < 2 || topology.libraries[island].empty() || !(alone || topology.has_leads())) return;
  LibraryRequest request;
  request.library = topology.libraries[island];
  request.device = place_.device;
  request.rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  request.size = static_cast<int>(members.size());
  request.timeout = options_->timeout + kLibraryGrace;
  request.group_name = group_->options().name + "/" + topology.labels[island] + "/";
  request.store =
      c10::make_intrusive<c10d::PrefixStore>("atoll/" + std::to_string(attempt()) + "/library/" +
                                                 std::to_string(group_->id()) + "/" + std::to_string(island) + "/",
                                             store);
  for (const int member : members) {
    const auto& known = options_->global_ranks_in_group;
    request.global_ranks.push_back(static_cast<std::size_t>(member) < known.size()
                                       ? static_cast<int>(known[static_cast<std::size_t>(member)])
                                       : member);
  }
  try {
    library_ = std::make_shared<Library>(place_, request);
    has_whole_library_.store(alone);
  } catch (const std::exception& error) {
    const Error told(ErrorKind::kUnavailable, "rank " + std::to_string(rank_) + " could not join the " +
                                                  request.library + " communicator of island \"" +
                                                  topology.labels[island] + "\": " + error.what());
    group_->fail(told);
    throw told;
  }
  // Nothing but the library may ever pass between two ranks of an island: the next one's end must be noticed all the same.
  group_->watch(members[(static_cast<std::size_t>(request.rank) + 1) % members.size()]);
  group_->when_failed([library = std::weak_ptr<Library>(library_), process = std::weak_ptr<Process>(process_),
                       group = std::weak_ptr<collectives::Group>(group_)] {
    const auto live = process.lock();
    if (live) live->completions->post([=] { end_library(library, process, group); });
  });
}

// The island's library still spreads the results when those who wait for them go on.
void BackendAtoll::watch_results(const c10::weak_intrusive_ptr<BackendAtoll>& weak, const std::shared_ptr<Trip>& trip,
                                 std::chrono::milliseconds timeout) {
  if (!trip->on_accelerator()) return;
  const auto works = trip->outward().works();
  const auto self = works.empty() ? nullptr : weak.lock();
  const auto process = self ? self->process() : nullptr;
  const auto entry = process ? self->watch_over(works, timeout) : nullptr;
  if (!entry) return;
  trip->on_reliance([process = std::weak_ptr<Process>(process), entry](bool is_future) {
    const auto live = process.lock();
    if (live) is_future ? live->watch.note_future(entry) : live->watch.note_reliance(entry);
  });
}

std::string BackendAtoll::library_in_use() const {
  const auto library = this->library();
  return library ? library->name() : "";
}

std::shared_ptr<Library> BackendAtoll::library() const {
  const std::lock_guard lock(mutex_);
  return library_;
}

// The library for the island's part of a call that crosses the bridge. The ranks of an island agree: by the call alone.
std::shared_ptr<Library> BackendAtoll::library_for(const collectives::Call& call, const Operands& operands) const {
  auto library = this->library();
  if (!library || operands.device().type() != library->device_type() || is_direct(call.operation)) return nullptr;
  if (!group()->topology().has_leads()) return nullptr;
  if (is_reduction(call.operation) && !library->folds(call.reduce_op, scalar_type(call.dtype))) return nullptr;
  return library;
}

std::shared_ptr<Passage> BackendAtoll::passage(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& known = passages_[device];
  if (!known) known = std::make_shared<Passage>(device, translated([] { return staging_bytes(); }));
  return known;
}

collectives::Call BackendAtoll::on_host(const std::shared_ptr<collectives::Group>& group,
                                        const std::shared_ptr<Passage>& passage, const Passage::EntryPtr& entry) {
  collectives::Call call = entry->piece->bridge_call();
  call.ready = [group = std::weak_ptr<collectives::Group>(group), passage, entry] {
    try {
      return passage->is_loaded(*entry);
    } catch (const Error& error) {
      const auto live = group.lock();
      if (!live) throw;
      std::rethrow_exception(account_of_library_failure(*live, error));
    }
  };
  return call;
}

BackendAtoll::WorkPtr BackendAtoll::issue_through_passage(const Operation& about, std::vector<collectives::Call> calls,
                                                          Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  const c10::Device device = operands.device();
  const auto passage = this->passage(device);
  // Atoll's own deadline is to be the first.
  const auto timeout = own_or_group(about.timeout);
  Surroundings around{&group->topology(), group->limits(), rank_, nullptr, timeout + kLibraryGrace};
  const auto trip = std::make_shared<Trip>(std::move(operands), passage->streams(), library_in_use(), calls.size());
  auto work = new_work(about, group, trip, inputs, std::move(outputs));
  work->expect_parts(calls.size());
  const bool on_caller = !about.async && calls.size() == 1 && !coalescing();
  const auto left = std::make_shared<std::atomic<std::size_t>>(calls.size());
  const auto stored =
      [=, self = c10::weak_intrusive_ptr<BackendAtoll>(
              c10::intrusive_ptr<BackendAtoll>::unsafe_reclaim_from_nonowning(this))](const std::exception_ptr& error) {
        if (left->fetch_sub(1) == 1) watch_results(self, trip, timeout);
        if (error) group->fail(Error(ErrorKind::kUnavailable, "bringing a result back failed: " + text_of(error)));
        work->part_done(error, /*may_block=*/on_caller);
      };
  if (!on_caller) note_if_coalescing(work);
  const std::lock_guard in_order(issue_mutex_);
  std::vector<Passage::EntryPtr> entries;
  for (const collectives::Call& call : calls) {
    around.library = library_for(call, trip->operands());
    entries.push_back(passage->enter(trip, around, call, stored));
  }
  passage->load();
  for (const auto& entry : entries) {
    try {
      collectives::Call call = on_host(group, passage, entry);
      if (on_caller) {
        group->run(call);
        passage->crossed(entry);
        continue;
      }
      group->submit(std::move(call), [work, passage, entry](const std::exception_ptr& error) {
        error ? work->part_done(error) : passage->crossed(entry);
      });
    } catch (const std::exception& error) {
      // The island's part is under way, so a call that does not follow it ends the group, whatever the reason.
      group->fail(Error(ErrorKind::kAborted, std::string("an operation was given up: ") + error.what()));
      work->part_done(std::current_exception());
    }
  }
  return work;
}

}  // namespace atl::pytorch
