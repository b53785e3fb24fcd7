// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string>

#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

struct Returned {
  std::mutex mutex;
  std::vector<c10::Stream> streams;
};

// Never destroyed: leases may outlive static objects.
Returned& returned() {
  static auto* const all = new Returned;
  return *all;
}

c10::Stream lease(c10::DeviceIndex index) {
  const std::lock_guard lock(returned().mutex);
  auto& streams = returned().streams;
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const c10::Stream& stream) {
    return stream.device_index() == index && stream_of(stream).is_idle();
  });
  if (found == streams.end()) return as_stream(index, device(index).new_stream());
  const c10::Stream stream = *found;
  streams.erase(found);
  return stream;
}

}  // namespace

void throw_as_torch(const Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  if (error.kind() == ErrorKind::kInvalidArgument) throw c10::ValueError(here, error.what());
  throw c10::DistBackendError(here, error.what());
}

StreamLease::StreamLease(c10::DeviceIndex index) : stream_(lease(index)), queue_(&stream_of(stream_)) {}

StreamLease::~StreamLease() {
  const std::lock_guard lock(returned().mutex);
  returned().streams.push_back(stream_);
}

WorkSimccl::WorkSimccl(const Facts& facts, std::vector<Part> parts, const std::vector<at::Tensor>& inputs,
                       std::vector<at::Tensor> outputs, std::weak_ptr<Communicator> communicator)
    : c10d::Work(facts.rank, facts.type, facts.title, inputs),
      facts_(facts),
      parts_(std::move(parts)),
      outputs_(std::move(outputs)),
      communicator_(std::move(communicator)) {
  // The profiler's range covers only the call; the device does the work later.
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

bool WorkSimccl::isCompleted() {
  require_working();
  note_query();
  return std::ranges::all_of(parts_, &Part::is_done);
}

bool WorkSimccl::isSuccess() const { return std::ranges::all_of(parts_, &Part::is_done) && exception() == nullptr; }

std::exception_ptr WorkSimccl::exception() const {
  for (const Part& part : parts_) {
    if (const auto error = part.outcome->error()) return error;
  }
  return nullptr;
}

void WorkSimccl::block_host(Deadline deadline) const {
  for (const Part& part : parts_) {
    if (!part.outcome->wait(deadline)) {
      throw_as_torch(Error(ErrorKind::kTimeout, std::string("simccl: the wait for ") + facts_.title + ", sequence " +
                                                    std::to_string(facts_.sequence) + ", on rank " +
                                                    std::to_string(facts_.rank) +
                                                    " timed out; the operation continues until its own deadline"));
    }
  }
  for (const Part& part : parts_) part.done.wait();
}

bool WorkSimccl::wait(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) {
    block_host(Deadline::after(timeout));
  } else if (facts_.blocks_host) {
    block_host(Deadline::never());  // bounded by the operation's own deadline
  }
  synchronize();
  return true;
}

void WorkSimccl::synchronize() {
  if (const auto error = exception()) std::rethrow_exception(error);
  for (const Part& part : parts_) stream_of(current_stream(part.index)).wait_for(part.done);
}

c10::intrusive_ptr<c10::ivalue::Future> WorkSimccl::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  std::set<c10::DeviceIndex> indices;
  for (const Part& part : parts_) indices.insert(part.index);
  std::vector<c10::Device> devices;
  std::vector<c10::Stream> streams;
  for (const c10::DeviceIndex index : indices) {
    devices.emplace_back(kSim, index);
    const auto& join = joins_.emplace_back(std::make_unique<StreamLease>(index));
    for (const Part& part : parts_) {
      if (part.index == index) join->queue().wait_for(part.done);
    }
    streams.push_back(join->get());
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  const c10::MultiStreamGuard guard(streams);
  if (const auto error = exception()) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

void WorkSimccl::abort() {
  if (const auto communicator = communicator_.lock()) {
    communicator->abort("Work.abort() was called on rank " + std::to_string(facts_.rank));
  }
}

}  // namespace atl::sim
