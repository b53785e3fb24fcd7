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
#include "atoll/pytorch/staging/trip.h"
#include "atoll/pytorch/staging/watch.h"

namespace atl::pytorch {

/// What a Work is about.
struct WorkFacts {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  ///< "atoll:all_reduce": the name of its range in the profiler
  int rank = 0;
  std::uint64_t sequence = 0;
};

/// One operation as torch.distributed sees it: one or several calls of libatoll. Completes exactly once, when the last call
/// has, and the outputs are valid. Owns its tensors and temporaries. Thread-safe.
class WorkAtoll final : public c10d::Work {
 public:
  using Listener = std::function<void(const std::exception_ptr&)>;

  /// `inputs` go to the profiler, `outputs` to result() and the future.
  WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
            Operands operands, std::shared_ptr<Completions> completions, std::weak_ptr<Watch> watch,
            std::weak_ptr<collectives::Group> group);

  /// The same for tensors that cross in pieces.
  WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
            std::shared_ptr<Trip> trip, std::shared_ptr<Completions> completions, std::weak_ptr<Watch> watch,
            std::weak_ptr<collectives::Group> group);

  // For the backend.

  /// Before the first part is issued: how many part_done() calls follow.
  void expect_parts(std::size_t count);

  /// One call has ended, with nullptr or its error. Any thread; with `may_block`, what is left to do is done on it.
  void part_done(const std::exception_ptr& error, bool may_block = false);

  /// All calls have run on this thread. Throws `error` as torch's, or what went wrong in copying.
  void done_on_caller(const std::exception_ptr& error);

  void set_source_rank(int rank);

  /// This one is done when `parts` are, and whoever waits for it waits for their tensors.
  void consists_of(const std::vector<c10::intrusive_ptr<WorkAtoll>>& parts);

  /// Calls `listener` once, when the work completes; at once if it has. Must not block.
  void when_done(Listener listener);

  const std::vector<at::Tensor>& outputs() const noexcept { return outputs_; }

  // c10d::Work

  /// Blocks until the outputs are valid, those on an accelerator for whoever uses the calling thread's current stream; throws the operation's error, or DistBackendError after `timeout` (zero or less:
  /// the operation's own deadline alone).
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;
  std::uint64_t getSequencenumber() const override { return facts_.sequence; }

  /// Aborts the group: an operation cannot be taken back alone, because peers take part in it.
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
  const std::weak_ptr<Watch> watch_;
  const std::weak_ptr<collectives::Group> group_;

  mutable std::mutex state_mutex_;  // the base class's mutex_ is taken inside finish()
  Operands operands_;
  std::vector<std::shared_ptr<Trip>> trips_;  // that bring this work's results; its own first
  bool has_trip_ = false;
  std::size_t parts_left_ = 0;
  std::exception_ptr first_error_;
  bool settled_ = false;
  int source_rank_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<Listener> listeners_;
};

}  // namespace atl::pytorch
