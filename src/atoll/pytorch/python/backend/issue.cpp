// SPDX-License-Identifier: Apache-2.0
// Turns an operation of torch into calls of libatoll and a Work.
#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/chunks.h"

namespace atl::pytorch {
namespace {

std::optional<std::chrono::milliseconds> stated(std::chrono::milliseconds timeout) {
  return timeout >= std::chrono::milliseconds(0) ? std::optional(timeout) : std::nullopt;  // c10d: -1 means "not set"
}

}  // namespace

collectives::Call BackendAtoll::call_for(collectives::Operation operation, const About& about,
                                         collectives::DataType dtype) {
  collectives::Call call;
  call.operation = operation;
  call.dtype = dtype;
  call.timeout = stated(about.timeout);
  return call;
}

WorkPtr BackendAtoll::issue(const About& about, std::vector<collectives::Call> calls, Operands operands,
                            const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  if (group->topology().has_staged_chunks()) {
    std::vector<collectives::Call> chunks;
    for (const collectives::Call& call : calls) {
      for (collectives::Call& chunk : cut_into_chunks(call, group->topology())) chunks.push_back(std::move(chunk));
    }
    calls = std::move(chunks);
  }
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i].part = static_cast<std::uint32_t>(i);
  const bool on_host = operands.device().is_cpu() && std::none_of(calls.begin(), calls.end(), [&](const auto& call) {
                         return staging_.library_for(call, operands) != nullptr;
                       });
  return on_host ? issue_on_host(*group, about, std::move(calls), std::move(operands), inputs, std::move(outputs))
                 : staging_.issue(about, calls, std::move(operands), inputs, std::move(outputs));
}

WorkPtr BackendAtoll::issue(const About& about, collectives::Call call, Operands operands, const Tensors& inputs,
                            Tensors outputs) {
  std::vector<collectives::Call> calls;  // not made of a list, which would copy the call
  calls.push_back(std::move(call));
  return issue(about, std::move(calls), std::move(operands), inputs, std::move(outputs));
}

WorkPtr BackendAtoll::issue_on_host(collectives::Group& group, const About& about, std::vector<collectives::Call> calls,
                                    Operands operands, const Tensors& inputs, Tensors outputs) {
  auto work = open_->new_work(about, std::move(operands), inputs, std::move(outputs));
  if (!about.async && !regions_.is_open()) {
    std::exception_ptr error;
    try {
      for (const collectives::Call& call : calls) group.run(call);
    } catch (...) {
      error = std::current_exception();
    }
    work->done_on_caller(error);
    return work;
  }
  regions_.note(work);
  work->expect_parts(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    try {
      group.submit(std::move(calls[i]), [work](const std::exception_ptr& error) { work->part_done(error); });
    } catch (...) {  // it was not queued, and those after it are not either
      const auto error = std::current_exception();
      for (std::size_t part = i; part < calls.size(); ++part) work->part_done(error);
      if (i == 0) std::rethrow_exception(as_torch(error));
      break;
    }
  }
  return work;
}

}  // namespace atl::pytorch
