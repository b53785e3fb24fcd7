// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/sim/device/stream.h"
#include "atoll/sim/library/communicator.h"

namespace atl::sim {

/// Throws the exception of torch.distributed for `error`: ValueError for kInvalidArgument, else DistBackendError.
[[noreturn]] void throw_as_torch(const Error& error);

/// A stream for exclusive use. Streams live as long as the process, so they are reused: a lease takes an idle one, or a
/// new one. Thread-safe.
class StreamLease {
 public:
  explicit StreamLease(c10::DeviceIndex index);
  ~StreamLease();
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  const c10::Stream& get() const noexcept { return stream_; }
  Stream& queue() const { return *queue_; }

 private:
  c10::Stream stream_;
  Stream* queue_;
};

/// The outcome of one operation. Thread-safe.
class Outcome {
 public:
  /// Sets nullptr or the error; must be called once.
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    is_set_ = true;
    changed_.notify_all();
  }
  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return is_set_;
  }
  /// Returns nullptr while it is not known.
  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  /// Blocks until it is set; false at `deadline`.
  bool wait(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    const auto is_known = [this] { return is_set_; };
    if (!deadline.is_never()) return changed_.wait_until(lock, deadline.when(), is_known);
    changed_.wait(lock, is_known);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_set_ = false;
  std::exception_ptr error_;
};

/// One or several operations of a ProcessGroupSimccl, which run on streams of their own. Thread-safe.
class WorkSimccl final : public c10d::Work {
 public:
  /// One operation: the stream reaches `done` when it has succeeded or failed.
  struct Part {
    std::shared_ptr<Outcome> outcome;
    Event done;
    c10::DeviceIndex index = 0;

    bool is_done() const { return outcome->is_set() && done.is_reached(); }
  };
  struct Facts {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;
    int rank = 0;
    std::uint64_t sequence = 0;
    bool blocks_host = false;  ///< wait() blocks the host too
  };
  WorkSimccl(const Facts& facts, std::vector<Part> parts, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs, std::weak_ptr<Communicator> communicator);

  const std::vector<Part>& parts() const noexcept { return parts_; }
  const std::vector<at::Tensor>& outputs() const noexcept { return outputs_; }
  bool blocks_host() const noexcept { return facts_.blocks_host; }

  /// Returns whether the device has done it; errors are then known.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;

  /// Makes the calling thread's current stream wait; the host continues, except with a timeout (zero: none) or after a
  /// barrier. Throws the error if it is known, and DistBackendError at the timeout.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return outputs_; }

  /// The future is complete at once: waiting for it makes the current streams wait.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return facts_.sequence; }

  /// Aborts the whole communicator.
  void abort() override;

 private:
  void block_host(Deadline deadline) const;

  const Facts facts_;
  const std::vector<Part> parts_;
  const std::vector<at::Tensor> outputs_;
  const std::weak_ptr<Communicator> communicator_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<std::unique_ptr<StreamLease>> joins_;  // streams on which the future waits for the parts, one per device
};

}  // namespace atl::sim
