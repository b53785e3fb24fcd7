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
#include "atoll/pytorch/staging/trip.h"

namespace atl::pytorch {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// What torch.distributed has asked for.
struct About {
  c10d::OpType type;
  const char* title;                  ///< for the profiler
  std::chrono::milliseconds timeout;  ///< negative: not stated
  bool async;
};

/// A collectives::Group that a backend has open, with what its operations need beside it. Thread-safe.
class OpenGroup {
 public:
  struct Parts {
    std::shared_ptr<Process> process;
    std::shared_ptr<collectives::Group> group;  // goes first
  };

  OpenGroup(Parts parts, c10::intrusive_ptr<c10d::Backend::Options> options);

  /// Throws DistBackendError once closed, and in a forked child.
  std::shared_ptr<collectives::Group> group() const { return open_parts().group; }

  /// Both, of one moment. Throws like group().
  Parts open_parts() const;

  /// Both null once closed.
  Parts parts() const;
  std::shared_ptr<Process> process() const { return parts().process; }

  /// Whether the process has been forked since.
  bool is_inherited() const noexcept;

  const c10d::Backend::Options& options() const noexcept { return *options_; }
  const std::string& name() const noexcept { return options_->group_name; }
  int rank() const noexcept { return rank_; }

  /// `stated` by the operation's options, else the group's.
  std::chrono::milliseconds timeout(std::chrono::milliseconds stated) const;
  void set_timeout(std::chrono::milliseconds timeout);

  /// The Work of an operation that begins now. Throws like group().
  c10::intrusive_ptr<WorkAtoll> new_work(const About& about, Operands operands, const Tensors& inputs,
                                         Tensors outputs) const;

  /// The same for tensors that cross in pieces.
  c10::intrusive_ptr<WorkAtoll> new_work(const About& about, std::shared_ptr<Trip> trip, const Tensors& inputs,
                                         Tensors outputs) const;

  /// From now on it is closed. Nothing when it was already.
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
