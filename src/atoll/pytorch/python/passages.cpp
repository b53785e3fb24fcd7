// SPDX-License-Identifier: Apache-2.0
// Operations whose tensors come to the bridge from an accelerator or through an island's library; messages.
#include <algorithm>
#include <thread>

#include "atoll/pytorch/inner/dtype.h"
#include "atoll/pytorch/inner/pieces.h"
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

// So long a library that failed waits for the group's own account, which names who has ended.
constexpr std::chrono::milliseconds kWaitForReport{1000};
constexpr std::chrono::milliseconds kLibraryGrace{2000};

bool is_reduction(collectives::Operation operation) {
  return operation == collectives::Operation::kAllReduce || operation == collectives::Operation::kReduce ||
         operation == collectives::Operation::kReduceScatter;
}

bool is_direct(collectives::Operation operation) {
  return operation == collectives::Operation::kGather || operation == collectives::Operation::kScatter ||
         operation == collectives::Operation::kAllToAll || operation == collectives::Operation::kBarrier;
}

[[noreturn]] void report_library(const collectives::Group& group, const Error& error) {
  const Deadline limit = Deadline::after(kWaitForReport);
  while (!group.error() && !limit.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (const auto known = group.error()) std::rethrow_exception(known);
  throw error;
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
  group_->when_failed([library = std::weak_ptr<Library>(library_), completions = process_->completions] {
    completions->post([library] {
      if (const auto live = library.lock()) live->abort();
    });
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
      report_library(*live, error);
    }
  };
  return call;
}

BackendAtoll::WorkPtr BackendAtoll::issue_through_passage(const Operation& about, std::vector<collectives::Call> calls,
                                                          Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  const c10::Device device = operands.device();
  const auto passage = this->passage(device);
  const auto library = library_for(calls.front(), operands);
  // Atoll's own deadline is to be the first.
  const auto timeout = (about.timeout < std::chrono::milliseconds(0) ? options_->timeout : about.timeout);
  const Surroundings around{&group->topology(), group->limits(), rank_, library, timeout + kLibraryGrace};
  const auto trip = std::make_shared<Trip>(std::move(operands), library ? library->name() : "", calls.size());
  auto work = new_work(about, group, trip, inputs, std::move(outputs));
  work->expect_parts(calls.size());
  const bool on_caller = !about.async && calls.size() == 1 && !coalescing();
  const auto stored = [work, group, on_caller](const std::exception_ptr& error) {
    if (error) group->fail(Error(ErrorKind::kUnavailable, "bringing a result back failed: " + text_of(error)));
    work->part_done(error, /*may_block=*/on_caller);
  };
  if (!on_caller) note_if_coalescing(work);
  const std::lock_guard in_order(issue_mutex_);
  std::vector<Passage::EntryPtr> entries;
  for (const collectives::Call& call : calls) entries.push_back(passage->enter(trip, around, call, stored));
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
    } catch (...) {
      work->part_done(std::current_exception());
    }
  }
  return work;
}

}  // namespace atl::pytorch
