// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/process/completions.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/staged_operation.h"
#include "atoll/pytorch/staging/watchdog.h"

namespace atl::pytorch {

/// Describes the operation of a Work.
struct WorkFacts {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  ///< "atoll:all_reduce": the name of its range in the profiler
  int rank = 0;
  std::uint64_t sequence = 0;
};

/// One operation as torch.distributed sees it: one or several calls of libatoll. Completes exactly once, when the last
/// call has completed and the outputs are valid. Owns its tensors and temporaries. Thread-safe.
class WorkAtoll final : public c10d::Work {
 public:
  using Listener = std::function<void(const std::exception_ptr&)>;

  /// `inputs` go to the profiler, `outputs` to result() and the future.
  WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
            Operands operands, std::shared_ptr<Completions> completions, std::weak_ptr<Watchdog> watchdog,
            std::weak_ptr<collectives::Group> group);

  /// For a staged operation.
  WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
            std::shared_ptr<StagedOperation> operation, std::shared_ptr<Completions> completions,
            std::weak_ptr<Watchdog> watchdog, std::weak_ptr<collectives::Group> group);

  // For the backend.

  /// Sets how many part_done() calls will follow. Called before the first part is issued.
  void expect_parts(std::size_t count);

  /// Notes that one call has ended, with nullptr or its error. Any thread; with `may_block`, the remaining work is done
  /// on it.
  void part_done(const std::exception_ptr& error, bool may_block = false);

  /// Notes that all calls have run on this thread. Throws `error` as torch's, or the error of copying the outputs.
  void done_on_caller(const std::exception_ptr& error);

  void set_source_rank(int rank);

  /// Makes this Work complete when `parts` have; waiting for it then waits for their tensors.
  void consists_of(const std::vector<c10::intrusive_ptr<WorkAtoll>>& parts);

  /// Calls `listener` once, when the work completes; at once if it has. Must not block.
  void when_done(Listener listener);

  const std::vector<at::Tensor>& outputs() const noexcept { return outputs_; }

  // c10d::Work

  /// Blocks until the outputs are valid; on an accelerator, until they are valid for work on the calling thread's
  /// current stream. Throws the operation's error, or DistBackendError after `timeout` (zero or less: only the
  /// operation's own deadline applies).
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { wait(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;
  std::uint64_t getSequencenumber() const override { return facts_.sequence; }

  /// Aborts the group: an operation cannot be aborted alone, because peers take part in it.
  void abort() override;

 private:
  void settle(bool may_block);
  bool must_block() const;
  void complete_outputs();
  std::exception_ptr mark_future(c10::ivalue::Future& future, const std::exception_ptr& error) const noexcept;
  void wait_for_device() const;
  [[noreturn]] void throw_here(const std::exception_ptr& error) const;
  c10::intrusive_ptr<WorkAtoll> self();

  const WorkFacts facts_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<Completions> completions_;
  const std::weak_ptr<Watchdog> watchdog_;
  const std::weak_ptr<collectives::Group> group_;

  mutable std::mutex state_mutex_;  // the base class locks its own mutex_ in finish()
  Operands operands_;
  std::vector<std::shared_ptr<StagedOperation>>
      staged_;  // the operations that produce this Work's results; its own first
  bool is_staged_ = false;
  std::size_t parts_left_ = 0;
  std::exception_ptr first_error_;
  bool settled_ = false;
  int source_rank_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<Listener> listeners_;
};

}  // namespace atl::pytorch
