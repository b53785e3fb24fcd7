// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/group_staging.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "atoll/collectives/refusals.h"
#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

using Kind = collectives::Operation;

bool is_reduction(Kind operation) {
  return operation == Kind::kAllReduce || operation == Kind::kReduce || operation == Kind::kReduceScatter;
}

// The call that crosses the bridge for a chunk as soon as the chunk is loaded.
collectives::Call on_host(const std::shared_ptr<collectives::Group>& group, const std::shared_ptr<StagingQueue>& queue,
                          const StagingQueue::EntryPtr& entry, std::uint32_t part,
                          std::optional<std::uint64_t> number) {
  collectives::Call call = entry->chunk->bridge_call();
  call.part = part;
  call.number = number;
  call.ready = [group = std::weak_ptr<collectives::Group>(group), queue, entry] {
    try {
      return queue->is_loaded(*entry);
    } catch (const Error& error) {
      const auto live = group.lock();
      if (!live) throw;
      std::rethrow_exception(account_of_library_failure(*live, error));
    }
  };
  if (!entry->chunk->comes_in_parts()) return call;
  call.loaded = [entry](std::uint32_t segment, std::uint64_t end) { return entry->chunk->is_loaded(segment, end); };
  call.arrived = [queue, entry](std::uint32_t segment, std::uint64_t end) { queue->arrived(entry, segment, end); };
  return call;
}

bool is_refusal(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const collectives::OperationRefused&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Another rank has refused the operation before this one started it.
WorkPtr refused(const c10::intrusive_ptr<WorkAtoll>& work, std::size_t parts) {
  for (std::size_t part = 0; part < parts; ++part) work->part_done(std::current_exception());
  return work;
}

}  // namespace

GroupStaging::GroupStaging(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions)
    : open_(std::move(open)),
      island_(std::move(island)),
      library_queue_(std::make_shared<LibraryQueue>(open_->parts())),
      regions_(regions) {}

std::shared_ptr<Library> GroupStaging::library_for(const collectives::Call& call, const Operands& operands) const {
  auto library = island_->get();
  if (!library || operands.device().type() != library->device_type()) return nullptr;
  if (is_direct(call.operation) || call.operation == Kind::kBarrier) return nullptr;
  if (!open_->group()->topology().has_leads()) return nullptr;
  if (is_reduction(call.operation) && !library->folds(call.reduce_op, scalar_type(call.dtype))) return nullptr;
  return library;
}

std::shared_ptr<StagingQueue> GroupStaging::queue(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& known = queues_[device];
  if (!known) {
    known = std::make_shared<StagingQueue>(device, translated([] { return staging_bytes(); }), clock_,
                                           library_queue_->issuer(), library_queue_->turns());
  }
  return known;
}

GroupStaging::ByDevice GroupStaging::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(queues_, {});
}

WorkPtr GroupStaging::issue(const About& about, const std::vector<collectives::Call>& calls, Operands operands,
                            const Tensors& inputs, Tensors outputs) {
  const auto group = open_->group();
  const auto queue = this->queue(operands.device());
  const auto timeout = open_->timeout(about.timeout);
  StagingContext context{&group->topology(), group->limits(), open_->rank(), nullptr, timeout + kLibraryGrace};
  const auto library = island_->get();
  const StagedOperation::StreamOf last = library ? &CopyStreams::out : &CopyStreams::to_device;
  const auto operation =
      std::make_shared<StagedOperation>(std::move(operands), queue->streams(), last, library.get(), calls.size());
  auto work = open_->new_work(about, operation, inputs, std::move(outputs));
  work->expect_parts(calls.size());
  const bool on_caller = !about.async && calls.size() == 1 && !regions_.is_open();
  const auto left = std::make_shared<std::atomic<std::size_t>>(calls.size());
  const auto stored = [operation, timeout, work, left, on_caller, caller = std::this_thread::get_id(),
                       weak = std::weak_ptr<IslandLibrary>(island_),
                       weak_group = std::weak_ptr<collectives::Group>(group)](std::exception_ptr error) {
    try {
      const auto island = left->fetch_sub(1) == 1 ? weak.lock() : nullptr;
      if (island) island->watch_results(operation, timeout);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    const auto live = error ? weak_group.lock() : nullptr;  // weak: the group's own queue holds this function
    if (live) live->fail(Error(ErrorKind::kUnavailable, "copying a result back failed: " + text_of(error)));
    work->part_done(error, /*may_block=*/on_caller && caller == std::this_thread::get_id());
  };
  if (!on_caller) regions_.note(work);
  const std::lock_guard in_order(issue_mutex_);
  std::vector<std::shared_ptr<Library>> libraries;
  for (const collectives::Call& call : calls) libraries.push_back(library_for(call, operation->operands()));
  const bool has_library = std::any_of(libraries.begin(), libraries.end(), [](const auto& each) { return each; });
  std::optional<std::uint64_t> number;
  std::vector<StagingQueue::EntryPtr> entries;
  try {
    if (has_library) number = group->commit();
    for (std::size_t part = 0; part < calls.size(); ++part) {
      context.library = libraries[part];
      std::optional<std::uint64_t> sequence;
      if (number) sequence = collectives::sequence_of(*number, static_cast<std::uint32_t>(part));
      entries.push_back(queue->enqueue(operation, context, calls[part], sequence, stored));
    }
  } catch (const std::exception& error) {
    // The chunks already in the queue would block all later ones.
    if (has_library && !number) return refused(work, calls.size());
    group->fail(Error(ErrorKind::kUnavailable, "an operation was given up: " + plain_text(error)));
    for (std::size_t part = 0; part < calls.size(); ++part) work->part_done(std::current_exception());
    return work;
  }
  queue->load();
  // A step of the library may block until other ranks issue it too, and this group's thread still has chunks to send.
  const auto go_back = [queue, library_queue = library_queue_, has_library](const StagingQueue::EntryPtr& entry) {
    queue->crossed(entry);
    has_library ? library_queue->run_soon() : library_queue->issuer()->run();
  };
  for (std::size_t part = 0; part < entries.size(); ++part) {
    const auto& entry = entries[part];
    try {
      collectives::Call call = on_host(group, queue, entry, static_cast<std::uint32_t>(part), number);
      if (on_caller) {
        group->run(call);
        queue->crossed(entry);
        library_queue_->issuer()->run();
        continue;
      }
      group->submit(std::move(call),
                    [work, queue, entry, go_back, library_queue = library_queue_](const std::exception_ptr& error) {
                      if (error) {
                        if (is_refusal(error)) {
                          queue->give_up(entry);
                          library_queue->run_soon();
                        }
                        return work->part_done(error);
                      }
                      go_back(entry);
                    });
    } catch (const collectives::OperationRefused&) {
      queue->give_up(entry);
      library_queue_->issuer()->run();
      work->part_done(std::current_exception(), /*may_block=*/on_caller);
    } catch (const std::exception& error) {
      // The island's part is under way, so a call that cannot follow it ends the group, whatever the reason.
      group->fail(Error(ErrorKind::kAborted, std::string("an operation was given up: ") + error.what()));
      work->part_done(std::current_exception());
    }
  }
  return work;
}

}  // namespace atl::pytorch
