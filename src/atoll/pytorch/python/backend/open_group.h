// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/backend/work.h"
#include "atoll/pytorch/python/process/process.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/staged_operation.h"

namespace atl::pytorch {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// Describes an operation that torch.distributed has requested.
struct About {
  c10d::OpType type;
  const char* title;                  ///< for the profiler
  std::chrono::milliseconds timeout;  ///< negative if not set
  bool async;
};

/// The open collectives::Group of a backend, with what its operations need besides. Thread-safe.
class OpenGroup {
 public:
  struct Parts {
    std::shared_ptr<Process> process;
    std::shared_ptr<collectives::Group> group;  // destroyed first
  };

  OpenGroup(Parts parts, c10::intrusive_ptr<c10d::Backend::Options> options);

  /// Throws DistBackendError once closed, and in a forked child.
  std::shared_ptr<collectives::Group> group() const { return open_parts().group; }

  /// Returns both parts, taken together. Throws like group().
  Parts open_parts() const;

  /// Returns both parts; null once closed.
  Parts parts() const;
  std::shared_ptr<Process> process() const { return parts().process; }

  /// Returns whether the process has been forked since.
  bool is_inherited() const noexcept;

  const c10d::Backend::Options& options() const noexcept { return *options_; }
  const std::string& name() const noexcept { return options_->group_name; }
  int rank() const noexcept { return rank_; }

  /// Returns the timeout `stated` by the operation's options, or the group's if that is negative.
  std::chrono::milliseconds timeout(std::chrono::milliseconds stated) const;
  void set_timeout(std::chrono::milliseconds timeout);

  /// Makes the Work of an operation that starts now. Throws like group().
  c10::intrusive_ptr<WorkAtoll> new_work(const About& about, Operands operands, const Tensors& inputs,
                                         Tensors outputs) const;

  /// Does the same for a staged operation.
  c10::intrusive_ptr<WorkAtoll> new_work(const About& about, std::shared_ptr<StagedOperation> operation,
                                         const Tensors& inputs, Tensors outputs) const;

  /// Closes this and returns its parts; empty if it was closed before.
  Parts take();

 private:
  template <typename Content>
  c10::intrusive_ptr<WorkAtoll> make_work(const About& about, Content content, const Tensors& inputs,
                                          Tensors outputs) const;

  const c10::intrusive_ptr<c10d::Backend::Options> options_;
  const int rank_;
  const std::uint32_t made_in_;  // fork_depth() of the maker
  mutable std::mutex mutex_;
  Parts parts_;
};

}  // namespace atl::pytorch
