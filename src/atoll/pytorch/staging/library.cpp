// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/library.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/core/log.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {
namespace {

LibraryMaker& maker() {
  static auto* const made_by = new LibraryMaker;
  return *made_by;
}

BackendPtr make(const LibraryRequest& request, const char* way, Deadline deadline) {
  LibraryRequest one = request;
  one.timeout = std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(request.timeout)),
                         std::chrono::milliseconds(1));
  one.store = c10::make_intrusive<c10d::PrefixStore>(way, request.store);
  one.group_name += way;
  return maker()(one);
}

bool reports_errors_of(c10d::Backend& backend) {
  try {
    backend.getError();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void set_library_maker(LibraryMaker made_by) { maker() = std::move(made_by); }

Library::Library(const Place& place, const LibraryRequest& request)
    : name_(request.library),
      device_type_(c10::Device(request.device).type()),
      device_index_(place.index),
      rank_(request.rank),
      size_(request.size),
      reductions_(place.reductions),
      waiter_(device_type_ == c10::kCPU ? std::make_shared<AbortableWaiter>() : nullptr) {
  const Deadline deadline = Deadline::after(request.timeout);
  in_ = make(request, "in/", deadline);
  out_ = make(request, "out/", deadline);
  reports_errors_ = reports_errors_of(*in_);
}

void Library::connect() {
  const c10::Device device(device_type_, static_cast<c10::DeviceIndex>(device_index_));
  for (const BackendPtr& backend : {in_, out_}) backend->eagerConnectSingleDevice(device);
}

Library::~Library() {
  abort();
  if (ended_ != End::kAborted || !waiter_) return;
  try {  // because a communicator's destructor waits for its operations
    std::thread([in = std::move(in_), out = std::move(out_)] {}).detach();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "cannot start a thread to close a communicator of " + name_ + ": " + error.what());
  }
}

bool Library::reduces(collectives::ReduceOp op, at::ScalarType type) const {
  return is_common(type) && reductions_.count(collectives::to_string(op)) > 0;
}

// The owner divides an average once; a factor is multiplied before the sum.
bool Library::folds(collectives::ReduceOp op, at::ScalarType type) const {
  using collectives::ReduceOp;
  if (op == ReduceOp::kPremulSum && !at::isFloatingType(type)) return false;
  return reduces(op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op, type);
}

std::string Library::fault() const {
  const auto error = reports_errors_ ? in_->getError() : c10d::ErrorType::SUCCESS;
  if (error == c10d::ErrorType::SUCCESS) return "";
  return error == c10d::ErrorType::TIMEOUT ? "an operation timed out" : "its communicator has failed";
}

bool Library::is_aborted() const {
  const std::lock_guard lock(mutex_);
  return ended_ == End::kAborted;
}

void Library::abort() noexcept { end(End::kAborted); }
void Library::shutdown() noexcept { end(End::kShutDown); }

void Library::end(End how) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ != End::kNone) return;
    ended_ = how;
  }
  if (how == End::kAborted && waiter_) waiter_->abort();
  std::thread beside;
  if (how == End::kAborted) {
    // NCCL's abort waits for all that the device does, and thus for operations of the other communicator, which end
    // only once that one is aborted.
    try {
      beside = std::thread([this, how] { end(*out_, how); });
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "cannot start a thread to close a communicator of " + name_ + ": " + error.what());
    }
  }
  end(*in_, how);
  beside.joinable() ? beside.join() : end(*out_, how);
}

void Library::end(c10d::Backend& backend, End how) const noexcept {
  try {
    how == End::kAborted ? backend.abort() : backend.shutdown();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "while closing a communicator of " + name_ + ": " + error.what());
  }
}

}  // namespace atl::pytorch
