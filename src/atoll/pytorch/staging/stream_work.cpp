// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/stream_work.h"

#include <thread>

#include "atoll/core/deadline.h"
#include "atoll/pytorch/aten/streams.h"

namespace atl::pytorch {
namespace {

constexpr std::chrono::milliseconds kStreamPollInterval{1};

}  // namespace

StreamWork::StreamWork(c10::Device device) : passed_(device.type()) { passed_.record(current_stream(device)); }

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) {
    const auto limit = Deadline::after(timeout);
    while (!isCompleted()) {
      TORCH_CHECK_WITH(DistBackendError, !limit.expired(), "the wait for a synchronous operation timed out after ",
                       timeout.count(), " ms; the operation continues until its own deadline");
      std::this_thread::sleep_for(kStreamPollInterval);
    }
  }
  synchronize();
  return true;
}

void StreamWork::synchronize() { passed_.block(current_stream(passed_.device())); }

// The future records its own event on the current stream, which waits for the operations first.
c10::intrusive_ptr<c10::ivalue::Future> StreamWork::getFuture() {
  synchronize();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         std::vector<c10::Device>{passed_.device()});
  future->markCompleted(c10::IValue(std::vector<at::Tensor>{}));
  return future;
}

}  // namespace atl::pytorch
