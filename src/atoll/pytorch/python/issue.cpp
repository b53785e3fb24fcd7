// SPDX-License-Identifier: Apache-2.0
// How an operation of torch becomes calls of libatoll and a Work; messages and coalescing.
#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/checks.h"
#include "atoll/pytorch/python/dtype.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

std::optional<std::chrono::milliseconds> stated(std::chrono::milliseconds timeout) {
  return timeout >= std::chrono::milliseconds(0) ? std::optional(timeout) : std::nullopt;  // c10d: -1 is "not stated"
}

std::uint64_t checked_tag(const char* operation, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, operation, ": tag ", tag, " is negative");
  return static_cast<std::uint64_t>(tag);
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

BackendAtoll::WorkPtr BackendAtoll::issue(const Operation& about, std::vector<collectives::Call> calls,
                                          Operands operands, const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  const auto staging = operands.staging();
  if (staging) {
    staging->begin();
    for (collectives::Call& call : calls) call.ready = [staging] { return staging->is_loaded(); };
  }
  auto work = new_work(about, group, std::move(operands), inputs, std::move(outputs));
  if (!about.async && !staging && !coalescing()) {
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

BackendAtoll::WorkPtr BackendAtoll::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only("send", "tensor", tensors);
  check_rank("send", "destination", destination, size_);
  const auto number = checked_tag("send", tag);
  const auto group = this->group();
  Operands operands;
  const auto memory = operands.read(tensor);
  const auto staging = operands.staging();
  if (staging) staging->begin();
  auto work = new_work({c10d::OpType::SEND, "atoll:send", c10d::kUnsetTimeout, true}, group, std::move(operands),
                       {tensor}, {tensor});
  note_if_coalescing(work);
  work->expect_parts(1);
  const auto send_now = [=, type = wire_type(tensor.scalar_type())] {
    group->send(destination, number, type, {memory.data, memory.bytes}, std::nullopt,
                [work](const std::exception_ptr& error) { work->part_done(error); });
  };
  if (const auto process = this->process(); process && (staging || !process->sends.is_idle())) {
    const auto ready = [=] { return !staging || staging->is_loaded() || group->error() != nullptr; };
    process->sends.post(ready, [=] {
      try {
        send_now();
      } catch (...) {
        work->part_done(std::current_exception());
      }
    });
    return work;
  }
  try {
    send_now();
  } catch (const Error& error) {
    throw_as_torch(error);
  }
  return work;
}

BackendAtoll::WorkPtr BackendAtoll::receive_from(const char* title, c10d::OpType type, Tensors& tensors, int source,
                                                 int tag) {
  const at::Tensor& tensor = only("recv", "tensor", tensors);
  const auto number = checked_tag("recv", tag);
  const auto group = this->group();
  Operands operands;
  const auto memory = operands.write(tensor);
  if (operands.staging()) operands.staging()->begin();
  auto work = new_work({type, title, c10d::kUnsetTimeout, true}, group, std::move(operands), {tensor}, {tensor});
  note_if_coalescing(work);
  work->expect_parts(1);
  try {
    group->receive(source, number, wire_type(tensor.scalar_type()), {memory.data, memory.bytes}, std::nullopt,
                   [work](const std::exception_ptr& error, int from) {
                     if (!error) work->set_source_rank(from);
                     work->part_done(error);
                   });
  } catch (const Error& error) {
    throw_as_torch(error);
  }
  return work;
}

BackendAtoll::WorkPtr BackendAtoll::recv(Tensors& tensors, int source, int tag) {
  check_rank("recv", "source", source, size_);
  return receive_from("atoll:recv", c10d::OpType::RECV, tensors, source, tag);
}

BackendAtoll::WorkPtr BackendAtoll::recvAnysource(Tensors& tensors, int tag) {
  return receive_from("atoll:recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, collectives::kAnySource, tag);
}

bool BackendAtoll::coalescing() const {
  if (regions_open_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(regions_mutex_);
  return regions_.count(std::this_thread::get_id()) > 0;
}

void BackendAtoll::note_if_coalescing(const c10::intrusive_ptr<WorkAtoll>& work) {
  if (regions_open_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(regions_mutex_);
  const auto region = regions_.find(std::this_thread::get_id());
  if (region != regions_.end()) region->second.push_back(work);
}

void BackendAtoll::startCoalescing() {
  const std::lock_guard lock(regions_mutex_);
  // A region that an exception left open ends here: torch closes regions on the good path only.
  regions_[std::this_thread::get_id()].clear();
  regions_open_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
}

BackendAtoll::WorkPtr BackendAtoll::endCoalescing() {
  std::vector<c10::intrusive_ptr<WorkAtoll>> works;
  {
    const std::lock_guard lock(regions_mutex_);
    const auto region = regions_.find(std::this_thread::get_id());
    TORCH_CHECK(region != regions_.end(), "end of a coalescing region that this thread has not started");
    works = std::move(region->second);
    regions_.erase(region);
    regions_open_.store(static_cast<int>(regions_.size()), std::memory_order_relaxed);
  }
  if (works.size() == 1) return works.front();
  Tensors outputs;
  for (const auto& work : works) outputs.insert(outputs.end(), work->outputs().begin(), work->outputs().end());
  const auto group = this->group();
  auto all = new_work({c10d::OpType::COALESCED, "atoll:coalesced", c10d::kUnsetTimeout, true}, group, {}, {},
                      std::move(outputs));
  if (works.empty()) {
    all->done_on_caller(nullptr);
    return all;
  }
  all->consists_of(works);
  return all;
}

}  // namespace atl::pytorch
