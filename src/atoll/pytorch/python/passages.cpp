// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/passages.h"

#include <atomic>
#include <utility>

#include "atoll/pytorch/inner/dtype.h"
#include "atoll/pytorch/inner/plain_text.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/library_failure.h"

namespace atl::pytorch {
namespace {

using Kind = collectives::Operation;

bool is_reduction(Kind operation) {
  return operation == Kind::kAllReduce || operation == Kind::kReduce || operation == Kind::kReduceScatter;
}

// What crosses the bridge for a piece, as soon as it has been loaded.
collectives::Call on_host(const std::shared_ptr<collectives::Group>& group, const std::shared_ptr<Passage>& passage,
                          const Passage::EntryPtr& entry) {
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
  if (!entry->piece->comes_in_parts()) return call;
  call.loaded = [entry](std::uint32_t segment, std::uint64_t end) { return entry->piece->is_loaded(segment, end); };
  call.arrived = [passage, entry](std::uint32_t segment, std::uint64_t end) { passage->arrived(entry, segment, end); };
  return call;
}

}  // namespace

Passages::Passages(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions)
    : open_(std::move(open)), island_(std::move(island)), regions_(regions) {}

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
  if (!known) known = std::make_shared<Passage>(device, translated([] { return staging_bytes(); }), clock_);
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
  const auto trip = std::make_shared<Trip>(std::move(operands), passage->streams(), island_->get().get(), calls.size());
  auto work = open_->new_work(about, trip, inputs, std::move(outputs));
  work->expect_parts(calls.size());
  const bool on_caller = !about.async && calls.size() == 1 && !regions_.is_open();
  const auto left = std::make_shared<std::atomic<std::size_t>>(calls.size());
  const auto stored = [trip, timeout, work, left, on_caller, weak = std::weak_ptr<IslandLibrary>(island_),
                       weak_group = std::weak_ptr<collectives::Group>(group)](std::exception_ptr error) {
    try {
      const auto island = left->fetch_sub(1) == 1 ? weak.lock() : nullptr;
      if (island) island->watch_results(trip, timeout);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    const auto live = error ? weak_group.lock() : nullptr;  // the group's own queue holds this
    if (live) live->fail(Error(ErrorKind::kUnavailable, "bringing a result back failed: " + text_of(error)));
    work->part_done(error, /*may_block=*/on_caller);
  };
  if (!on_caller) regions_.note(work);
  const std::lock_guard in_order(issue_mutex_);
  std::vector<Passage::EntryPtr> entries;
  bool has_library = false;
  try {
    for (const collectives::Call& call : calls) {
      around.library = library_for(call, trip->operands());
      has_library = has_library || around.library;
      entries.push_back(passage->enter(trip, around, call, stored));
    }
  } catch (const std::exception& error) {
    // Those that have entered would be in the way of all that come.
    group->fail(Error(ErrorKind::kUnavailable, "an operation was given up: " + plain_text(error)));
    for (std::size_t part = 0; part < calls.size(); ++part) work->part_done(std::current_exception());
    return work;
  }
  passage->load();
  // What a library issues may block until other ranks call it, perhaps with the result of a piece that is to cross here first.
  const auto elsewhere = has_library ? open_->process()->completions : nullptr;
  for (const auto& entry : entries) {
    try {
      collectives::Call call = on_host(group, passage, entry);
      if (on_caller) {
        group->run(call);
        passage->crossed(entry);
        continue;
      }
      group->submit(std::move(call), [work, passage, entry, elsewhere](const std::exception_ptr& error) {
        if (error) return work->part_done(error);
        elsewhere ? elsewhere->post([passage, entry] { passage->crossed(entry); }) : passage->crossed(entry);
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
