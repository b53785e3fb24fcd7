// SPDX-License-Identifier: Apache-2.0
// How an operation of torch becomes calls of libatoll and a Work; coalescing.
#include "atoll/pytorch/inner/pieces.h"
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/work_of_library.h"

namespace atl::pytorch {
namespace {

std::optional<std::chrono::milliseconds> stated(std::chrono::milliseconds timeout) {
  return timeout >= std::chrono::milliseconds(0) ? std::optional(timeout) : std::nullopt;  // c10d: -1 is "not stated"
}

}  // namespace

collectives::Call BackendAtoll::call_for(collectives::Operation operation, const Operation& about,
                                         collectives::DataType dtype) const {
  collectives::Call call;
  call.operation = operation;
  call.dtype = dtype;
  call.timeout = stated(about.timeout);
  return call;
}

c10::intrusive_ptr<WorkAtoll> BackendAtoll::new_work(const Operation& about,
                                                     const std::shared_ptr<collectives::Group>& group,
                                                     Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto process = this->process();
  auto completions = process ? process->completions : nullptr;
  const WorkFacts facts{about.type, about.title, rank_, group->sequence()};
  return c10::make_intrusive<WorkAtoll>(facts, inputs, std::move(outputs), std::move(operands), std::move(completions),
                                        group);
}

c10::intrusive_ptr<WorkAtoll> BackendAtoll::new_work(const Operation& about,
                                                     const std::shared_ptr<collectives::Group>& group,
                                                     std::shared_ptr<Trip> trip, const Tensors& inputs,
                                                     Tensors outputs) {
  const auto process = this->process();
  auto completions = process ? process->completions : nullptr;
  const WorkFacts facts{about.type, about.title, rank_, group->sequence()};
  return c10::make_intrusive<WorkAtoll>(facts, inputs, std::move(outputs), std::move(trip), std::move(completions),
                                        group);
}

BackendAtoll::WorkPtr BackendAtoll::issue(const Operation& about, std::vector<collectives::Call> calls,
                                          Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  if (group->topology().has_pieces()) {
    std::vector<collectives::Call> pieces;
    for (const collectives::Call& call : calls) {
      for (collectives::Call& piece : cut_into_pieces(call, group->topology())) pieces.push_back(std::move(piece));
    }
    calls = std::move(pieces);
  }
  const bool on_host = operands.device().is_cpu() && std::none_of(calls.begin(), calls.end(), [&](const auto& call) {
                         return library_for(call, operands) != nullptr;
                       });
  return on_host ? issue_on_host(about, std::move(calls), std::move(operands), inputs, std::move(outputs))
                 : issue_through_passage(about, std::move(calls), std::move(operands), inputs, std::move(outputs));
}

BackendAtoll::WorkPtr BackendAtoll::issue_on_host(const Operation& about, std::vector<collectives::Call> calls,
                                                  Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  auto work = new_work(about, group, std::move(operands), inputs, std::move(outputs));
  if (!about.async && !coalescing()) {
    std::exception_ptr error;
    try {
      for (const collectives::Call& call : calls) group->run(call);
    } catch (...) {
      error = std::current_exception();
    }
    work->done_on_caller(error);
    return work;
  }
  note_if_coalescing(work);
  work->expect_parts(calls.size());
  for (collectives::Call& call : calls) {
    try {
      group->submit(std::move(call), [work](const std::exception_ptr& error) { work->part_done(error); });
    } catch (...) {  // refused before it was queued
      work->part_done(std::current_exception());
    }
  }
  return work;
}

bool BackendAtoll::coalescing() const {
  if (regions_open_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(regions_mutex_);
  return regions_.count(std::this_thread::get_id()) > 0;
}

void BackendAtoll::note_if_coalescing(const WorkPtr& work) {
  if (regions_open_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(regions_mutex_);
  const auto region = regions_.find(std::this_thread::get_id());
  if (region != regions_.end() && work) region->second.works.push_back(work);
}

void BackendAtoll::startCoalescing() {
  const std::lock_guard lock(regions_mutex_);
  // A region that an exception left open ends here: torch closes regions on the good path only.
  regions_[std::this_thread::get_id()] = {};
  regions_open_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
}

BackendAtoll::WorkPtr BackendAtoll::endCoalescing() {
  Region region;
  {
    const std::lock_guard lock(regions_mutex_);
    const auto known = regions_.find(std::this_thread::get_id());
    TORCH_CHECK(known != regions_.end(), "end of a coalescing region that this thread has not started");
    region = std::move(known->second);
    regions_.erase(known);
    regions_open_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
  }
  if (region.library) {
    if (const WorkPtr work = region.library->in().endCoalescing()) {
      region.works.push_back(of_library({work}, watch_over({work}, region.timeout)));
    }
  }
  return combined(std::move(region.works));
}

// One Work for all of them.
BackendAtoll::WorkPtr BackendAtoll::combined(std::vector<WorkPtr> works) {
  if (works.size() == 1) return works.front();
  Tensors outputs;
  std::vector<c10::intrusive_ptr<WorkAtoll>> own;
  for (const WorkPtr& work : works) {
    auto known = c10::dynamic_intrusive_pointer_cast<WorkAtoll>(work);
    if (!known) return of_library(std::move(works), nullptr);  // each is watched already
    outputs.insert(outputs.end(), known->outputs().begin(), known->outputs().end());
    own.push_back(std::move(known));
  }
  auto all = new_work({c10d::OpType::COALESCED, "atoll:coalesced", c10d::kUnsetTimeout, true}, group(), Operands(), {},
                      std::move(outputs));
  if (own.empty()) {
    all->done_on_caller(nullptr);
    return all;
  }
  all->consists_of(own);
  return all;
}

}  // namespace atl::pytorch
