// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/group_staging.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "atoll/collectives/describe.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/process/arena.h"
#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

using Kind = collectives::Operation;

bool is_reduction(Kind operation) {
  return operation == Kind::kAllReduce || operation == Kind::kReduce || operation == Kind::kReduceScatter;
}

// Another rank has refused the operation before this one started it.
WorkPtr refused(const c10::intrusive_ptr<WorkAtoll>& work, std::size_t parts) {
  for (std::size_t part = 0; part < parts; ++part) work->part_done(std::current_exception());
  return work;
}

// Runs the call on this thread or gives it to the group's.
void cross(collectives::Group& group, collectives::Call call, const std::shared_ptr<StagedCall>& staged,
           bool on_caller) {
  try {
    if (on_caller) {
      group.run(call);
      return staged->crossed();
    }
    group.submit(std::move(call),
                 [staged](const std::exception_ptr& error) { error ? staged->failed(error) : staged->crossed(); });
  } catch (const std::exception& error) {
    // The island's part is under way, so a call that cannot follow it ends the group, unless another rank has refused
    // the operation.
    const std::exception_ptr failure = std::current_exception();
    if (!is_refusal(failure)) {
      group.fail(Error(ErrorKind::kAborted, std::string("an operation was given up: ") + error.what()));
    }
    staged->failed(failure);
  }
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
    const auto budget = translated([] { return staging_bytes(); });
    known = std::make_shared<StagingQueue>(device, budget, open_->group()->can_lend() ? staging_memory : pinned_memory,
                                           clock_, library_queue_->issuer(), library_queue_->turns());
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
  const auto library = island_->get();
  const StagedOperation::StreamOf last = library ? &CopyStreams::out : &CopyStreams::to_device;
  const auto issue = std::make_shared<StagedIssue>();
  issue->operation =
      std::make_shared<StagedOperation>(std::move(operands), queue->streams(), last, library.get(), calls.size());
  issue->work = open_->new_work(about, issue->operation, inputs, std::move(outputs));
  issue->group = group;
  issue->island = island_;
  issue->timeout = open_->timeout(about.timeout);
  issue->on_caller = !about.async && calls.size() == 1 && !regions_.is_open();
  issue->chunks_left = calls.size();
  issue->work->expect_parts(calls.size());
  if (!issue->on_caller) regions_.note(issue->work);
  const std::lock_guard in_order(issue_mutex_);
  std::optional<std::uint64_t> number;
  std::vector<StagingQueue::EntryPtr> entries;
  try {
    entries = enqueue(calls, issue, *queue, number);
  } catch (const std::exception& error) {
    // The chunks already in the queue would block all later ones.
    if (issue->has_library && !number) return refused(issue->work, calls.size());
    group->fail(Error(ErrorKind::kUnavailable, "an operation was given up: " + plain_text(error)));
    for (std::size_t part = 0; part < calls.size(); ++part) issue->work->part_done(std::current_exception());
    return issue->work;
  }
  queue->load();
  for (std::size_t part = 0; part < entries.size(); ++part) {
    collectives::Call call = entries[part]->chunk->bridge_call();
    call.part = static_cast<std::uint32_t>(part);
    call.number = number;
    const auto staged = std::make_shared<StagedCall>(issue, queue, library_queue_, entries[part]);
    call.progress = staged;
    cross(*group, std::move(call), staged, issue->on_caller);
  }
  return issue->work;
}

// Appends the operation's chunks to the queue, under the operation's number if the library takes part in any.
std::vector<StagingQueue::EntryPtr> GroupStaging::enqueue(const std::vector<collectives::Call>& calls,
                                                          const std::shared_ptr<StagedIssue>& issue,
                                                          StagingQueue& queue, std::optional<std::uint64_t>& number) {
  const auto group = open_->group();
  std::vector<std::shared_ptr<Library>> libraries;
  for (const collectives::Call& call : calls) libraries.push_back(library_for(call, issue->operation->operands()));
  issue->has_library = std::any_of(libraries.begin(), libraries.end(), [](const auto& each) { return each; });
  if (issue->has_library) number = group->commit();
  const auto stored = [issue](const std::exception_ptr& error) { issue->stored(error); };
  std::vector<StagingQueue::EntryPtr> entries;
  for (std::size_t part = 0; part < calls.size(); ++part) {
    const StagingContext context{&group->topology(), group->limits(), open_->rank(), libraries[part],
                                 issue->timeout + kLibraryGrace};
    std::optional<std::uint64_t> sequence;
    if (number) sequence = collectives::sequence_of(*number, static_cast<std::uint32_t>(part));
    entries.push_back(queue.enqueue(issue->operation, context, calls[part], sequence, stored));
  }
  return entries;
}

}  // namespace atl::pytorch
