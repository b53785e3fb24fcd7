// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/core/loop.h"
#include "atoll/infer/link/payload_ring.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// The parameters of every worker process.
struct WorkerCommand {
  std::string program;  ///< atoll_infer_worker
  std::string device = "cpu";
  int threads = 1;
  std::uint64_t memory_bytes = 0;  ///< of address space beyond what it starts with; 0: no limit
  double profile_seconds = 1;      ///< for timing the model's operators; 0: their times are known
};

/// A worker process as the server sees it. All on the loop thread.
class WorkerProcess {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_frame(const wire::ReceivedFrame& frame) = 0;
    /// Queued bytes have all been taken.
    virtual void on_drained() = 0;
    /// The last call: the process has ended, or sent bytes that do not parse. The worker may be destroyed inside.
    virtual void on_lost(const Error& error) = 0;
  };

  /// Starts the process, with the part of the environment that programs and devices need. Throws Error(kUnavailable) if
  /// that fails.
  WorkerProcess(Loop& loop, Owner& owner, const WorkerCommand& command, const Fd& weights);
  /// Kills the process. Does not wait if a device delays its end.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  void send(const wire::Message& message);
  /// Sends a whole frame as it is. Copies what the process does not take at once.
  void forward(std::span<const std::byte> frame);
  /// Payloads for it, which lent frames name. Shared, because one may still be assembled when it ends.
  const std::shared_ptr<PayloadWriter>& payloads_in() const noexcept { return payloads_in_; }
  /// Payloads of its lent frames. Shared, because a payload is released when it has been sent.
  const std::shared_ptr<PayloadReader>& payloads_out() const noexcept { return payloads_out_; }
  /// The memory of its lent frames, for another reader.
  const Fd& payloads_out_memory() const noexcept { return payloads_made_.memory(); }
  /// Stops calling the owner.
  void stop();
  /// Bytes that it has not taken.
  std::size_t queued_bytes() const noexcept { return queued_bytes_; }
  /// Queued bytes that it has taken so far.
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }
  pid_t pid() const noexcept { return pid_; }

 private:
  void flush();
  void read();
  void on_exit();
  void watch(bool writable);

  Loop& loop_;
  Owner& owner_;
  const std::shared_ptr<PayloadWriter> payloads_in_;
  const PayloadWriter payloads_made_;  // the worker's memory, which it writes itself
  const std::shared_ptr<PayloadReader> payloads_out_;
  Fd socket_;
  pid_t pid_ = -1;
  wire::FrameParser parser_;
  std::vector<std::byte> buffer_;
  std::deque<std::vector<std::byte>> queue_;
  std::size_t front_sent_ = 0;
  std::size_t queued_bytes_ = 0;
  std::uint64_t taken_bytes_ = 0;
  bool is_watching_writable_ = false;
  bool is_stopped_ = false;
};

}  // namespace atl::infer
