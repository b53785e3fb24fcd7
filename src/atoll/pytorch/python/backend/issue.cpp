// SPDX-License-Identifier: Apache-2.0
// How an operation of torch becomes calls of libatoll and a Work.
#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/pieces.h"

namespace atl::pytorch {
namespace {

std::optional<std::chrono::milliseconds> stated(std::chrono::milliseconds timeout) {
  return timeout >= std::chrono::milliseconds(0) ? std::optional(timeout) : std::nullopt;  // c10d: -1 is "not stated"
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
  if (group->topology().has_pieces()) {
    std::vector<collectives::Call> pieces;
    for (const collectives::Call& call : calls) {
      for (collectives::Call& piece : cut_into_pieces(call, group->topology())) pieces.push_back(std::move(piece));
    }
    calls = std::move(pieces);
  }
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i].part = static_cast<std::uint32_t>(i);
  const bool on_host = operands.device().is_cpu() && std::none_of(calls.begin(), calls.end(), [&](const auto& call) {
                         return passages_.library_for(call, operands) != nullptr;
                       });
  return on_host ? issue_on_host(about, std::move(calls), std::move(operands), inputs, std::move(outputs))
                 : passages_.issue(about, calls, std::move(operands), inputs, std::move(outputs));
}

WorkPtr BackendAtoll::issue_on_host(const About& about, std::vector<collectives::Call> calls, Operands operands,
                                    const Tensors& inputs, Tensors outputs) {
  const auto group = this->group();
  auto work = open_->new_work(about, std::move(operands), inputs, std::move(outputs));
  if (!about.async && !regions_.is_open()) {
    std::exception_ptr error;
    try {
      for (const collectives::Call& call : calls) group->run(call);
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
      group->submit(std::move(calls[i]), [work](const std::exception_ptr& error) { work->part_done(error); });
    } catch (...) {  // before it was queued, and what follows it is not either
      const auto error = std::current_exception();
      for (std::size_t part = i; part < calls.size(); ++part) work->part_done(error);
      if (i == 0) std::rethrow_exception(as_torch(error));
      break;
    }
  }
  return work;
}

}  // namespace atl::pytorch
