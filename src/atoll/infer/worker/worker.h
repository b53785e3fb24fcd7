// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "atoll/core/fd.h"
#include "atoll/infer/link/payload_ring.h"
#include "atoll/infer/run/runner.h"

namespace atl::infer {

/// The options that the server passes to a worker process.
struct WorkerOptions {
  double profile_seconds = 1.0;              ///< for timing the operators; 0: their times are known
  std::int64_t most_activation_bytes = 0;    ///< of one operator's outputs and workspace; 0: no limit
  std::function<void()> enter_sandbox = {};  ///< called before the first byte from a client is read
  std::function<void()> on_ready = {};       ///< called when the model is ready to run
  bool admits_everything = false;            ///< for tests whose operators are not PyTorch's
  std::shared_ptr<PayloadEnds> payloads{};   ///< null: they all go through the socket
};

/// Serves one client's model: reads frames from `socket`, whose other end is the server, until that is closed.
/// `weights` is the model's weight file, readable. The graph is admitted (safety/admit.h) before any of it runs, and so
/// is each operator call that a division or measuring changes; if the calls for measuring are refused, whole operators
/// are timed, and Ready has no dimension. Answers errors of the client with wire::Failed. Returns the exit status of
/// the process.
int run_worker(Fd socket, Fd weights, std::shared_ptr<OperatorRunner> runner, const WorkerOptions& options);

/// Does the same in a worker process, with the descriptors that it was started with. Uses all of them, once.
int run_worker(std::shared_ptr<OperatorRunner> runner, WorkerOptions options);

}  // namespace atl::infer
