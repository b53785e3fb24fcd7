// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Operations of a library that it may still be busy with when it is to end. Keeps none of them alive: the library, or the
/// watch, does as long as one is under way. Thread-safe.
class Unfinished {
 public:
  void note(const std::vector<c10::intrusive_ptr<c10d::Work>>& works);

  /// Waits until all have ended, well or not. False where that takes longer than `limit`, or once `is_over()`.
  bool drain(Deadline limit, const std::function<bool()>& is_over);

 private:
  bool drop_ended();  ///< at the front; whether all have

  std::mutex mutex_;
  std::deque<c10::weak_intrusive_ptr<c10d::Work>> works_;
};

}  // namespace atl::pytorch
