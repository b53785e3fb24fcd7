// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Counts the operations of a library on the CPU that are under way, because shutting down the library may wait for
/// them without limit. Keeps neither the operations nor their tensors alive. Thread-safe.
class InFlightCounter {
 public:
  /// Counts these works until they complete. A work without a future is not counted.
  void note(const std::vector<c10::intrusive_ptr<c10d::Work>>& works);

  /// Waits until all have completed or failed. Returns false at `limit`, or once `is_over()` returns true.
  bool drain(Deadline limit, const std::function<bool()>& is_over) const;

 private:
  const std::shared_ptr<std::atomic<std::int64_t>> count_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace atl::pytorch
