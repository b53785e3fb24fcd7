// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "atoll/core/deadline.h"

namespace atl::infer {

/// The pauses before a server that fails inferences is used again. Failures may be lasting, so pauses grow from a
/// second to a minute until an inference succeeds. Why it ended the model is kept until it is told, because it may run
/// the model again before that. Any thread.
class FailurePause {
 public:
  void another() {
    const std::lock_guard lock(mutex_);
    not_before_ = Clock::now() + pause_;
    pause_ = std::min<Clock::duration>(2 * pause_, std::chrono::seconds(60));
  }
  void over() {
    const std::lock_guard lock(mutex_);
    pause_ = std::chrono::seconds(1);
  }
  void keep(std::string reason) {
    const std::lock_guard lock(mutex_);
    reason_ = std::move(reason);
  }
  /// The reason, once; empty if there is none.
  std::string taken_reason() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reason_, {});
  }
  bool is_too_early() const {
    const std::lock_guard lock(mutex_);
    return Clock::now() < not_before_;
  }

 private:
  mutable std::mutex mutex_;
  Clock::duration pause_ = std::chrono::seconds(1);
  Clock::time_point not_before_{};
  std::string reason_;
};

}  // namespace atl::infer
