// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Counts operations of a library on the CPU that are under way, for whoever shuts it down: that may wait for them without an
/// end. Holds none of them, nor their tensors. Thread-safe.
class Unfinished {
 public:
  /// A work without a future is not counted.
  void note(const std::vector<c10::intrusive_ptr<c10d::Work>>& works);

  /// Waits until all have ended, well or not. False where that takes longer than `limit`, or once `is_over()`.
  bool drain(Deadline limit, const std::function<bool()>& is_over) const;

 private:
  const std::shared_ptr<std::atomic<std::int64_t>> count_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace atl::pytorch
