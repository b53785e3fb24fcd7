// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/passages.h"

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

// What crosses the bridge for a piece, as soon as it has been loaded.
collectives::Call on_host(const std::shared_ptr<collectives::Group>& group, const std::shared_ptr<Passage>& passage,
                          const Passage::EntryPtr& entry, std::uint32_t part, std::optional<std::uint64_t> number) {
  collectives::Call call = entry->piece->bridge_call();
  call.part = part;
  call.number = number;
  call.ready = [group = std::weak_ptr<collectives::Group>(group), passage, entry] {
    try {
      return passage->is_loaded(*entry);
    } catch (const Error& error) {
      const auto live = group.lock();
      if (!live) throw;
      std::rethrow_exception(account_of_library_failure(*live, error));
    }
  };
  if (!entry->piece->comes_in_parts()) return call;
  call.loaded = [entry](std::uint32_t segment, std::uint64_t end) { return entry->piece->is_loaded(segment, end); };
  call.arrived = [passage, entry](std::uint32_t segment, std::uint64_t end) { passage->arrived(entry, segment, end); };
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

// Another rank has refused the operation before this one began it.
WorkPtr refused(const c10::intrusive_ptr<WorkAtoll>& work, std::size_t parts) {
  for (std::size_t part = 0; part < parts; ++part) work->part_done(std::current_exception());
  return work;
}

}  // namespace

Passages::Passages(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions)
    : open_(std::move(open)),
      island_(std::move(island)),
      queue_(std::make_shared<LibraryQueue>(open_->parts())),
      regions_(regions) {}

std::shared_ptr<Library> Passages::library_for(const collectives::Call& call, const Operands& operands) const {
  auto library = island_->get();
  if (!library || operands.device().type() != library->device_type()) return nullptr;
  if (is_direct(call.operation) || call.operation == Kind::kBarrier) return nullptr;
  if (!open_->group()->topology().has_leads()) return nullptr;
  if (is_reduction(call.operation) && !library->folds(call.reduce_op, scalar_type(call.dtype))) return nullptr;
  return library;
}

std::shared_ptr<Passage> Passages::passage(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& known = passages_[device];
  if (!known) {
    known = std::make_shared<Passage>(device, translated([] { return staging_bytes(); }), clock_, queue_->issuer(),
                                      queue_->turns());
  }
  return known;
}

Passages::ByDevice Passages::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(passages_, {});
}

WorkPtr Passages::issue(const About& about, const std::vector<collectives::Call>& calls, Operands operands,
                        const Tensors& inputs, Tensors outputs) {
  const auto group = open_->group();
  const auto passage = this->passage(operands.device());
  const auto timeout = open_->timeout(about.timeout);
  Surroundings around{&group->topology(), group->limits(), open_->rank(), nullptr, timeout + kLibraryGrace};
  const auto library = island_->get();
  const Trip::Way last = library ? &CopyStreams::out : &CopyStreams::to_device;
  const auto trip = std::make_shared<Trip>(std::move(operands), passage->streams(), last, library.get(), calls.size());
  auto work = open_->new_work(about, trip, inputs, std::move(outputs));
  work->expect_parts(calls.size());
  const bool on_caller = !about.async && calls.size() == 1 && !regions_.is_open();
  const auto left = std::make_shared<std::atomic<std::size_t>>(calls.size());
  const auto stored = [trip, timeout, work, left, on_caller, caller = std::this_thread::get_id(),
                       weak = std::weak_ptr<IslandLibrary>(island_),
                       weak_group = std::weak_ptr<collectives::Group>(group)](std::exception_ptr error) {
    try {
      const auto island = left->fetch_sub(1) == 1 ? weak.lock() : nullptr;
      if (island) island->watch_results(trip, timeout);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    const auto live = error ? weak_group.lock() : nullptr;  // the group's own queue holds this
    if (live) live->fail(Error(ErrorKind::kUnavailable, "bringing a result back failed: " + text_of(error)));
    work->part_done(error, /*may_block=*/on_caller && caller == std::this_thread::get_id());
  };
  if (!on_caller) regions_.note(work);
  const std::lock_guard in_order(issue_mutex_);
  std::vector<std::shared_ptr<Library>> libraries;
  for (const collectives::Call& call : calls) libraries.push_back(library_for(call, trip->operands()));
  const bool has_library = std::any_of(libraries.begin(), libraries.end(), [](const auto& each) { return each; });
  std::optional<std::uint64_t> number;
  std::vector<Passage::EntryPtr> entries;
  try {
    if (has_library) number = group->commit();
    for (std::size_t part = 0; part < calls.size(); ++part) {
      around.library = libraries[part];
      std::optional<std::uint64_t> sequence;
      if (number) sequence = collectives::sequence_of(*number, static_cast<std::uint32_t>(part));
      entries.push_back(passage->enter(trip, around, calls[part], sequence, stored));
    }
  } catch (const std::exception& error) {
    // Those that have entered would be in the way of all that come.
    if (has_library && !number) return refused(work, calls.size());
    group->fail(Error(ErrorKind::kUnavailable, "an operation was given up: " + plain_text(error)));
    for (std::size_t part = 0; part < calls.size(); ++part) work->part_done(std::current_exception());
    return work;
  }
  passage->load();
  // What a library issues may block until other ranks do the same, and this group's thread has pieces to bring across meanwhile.
  const auto go_back = [passage, queue = queue_, has_library](const Passage::EntryPtr& entry) {
    passage->crossed(entry);
    has_library ? queue->run_soon() : queue->issuer()->run();
  };
  for (std::size_t part = 0; part < entries.size(); ++part) {
    const auto& entry = entries[part];
    try {
      collectives::Call call = on_host(group, passage, entry, static_cast<std::uint32_t>(part), number);
      if (on_caller) {
        group->run(call);
        passage->crossed(entry);
        queue_->issuer()->run();
        continue;
      }
      group->submit(std::move(call), [work, passage, entry, go_back, queue = queue_](const std::exception_ptr& error) {
        if (error) {
          if (is_refusal(error)) {
            passage->give_up(entry);
            queue->run_soon();
          }
          return work->part_done(error);
        }
        go_back(entry);
      });
    } catch (const collectives::OperationRefused&) {
      passage->give_up(entry);
      queue_->issuer()->run();
      work->part_done(std::current_exception(), /*may_block=*/on_caller);
    } catch (const std::exception& error) {
      // The island's part is under way, so a call that does not follow it ends the group, whatever the reason.
      group->fail(Error(ErrorKind::kAborted, std::string("an operation was given up: ") + error.what()));
      work->part_done(std::current_exception());
    }
  }
  return work;
}

}  // namespace atl::pytorch
