// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace atl::pytorch {

/// The functions to call when a group fails, by ids that the caller chooses. Thread-safe; hooks are called without
/// locks held.
class FailureHooks {
 public:
  /// Returns whether this is the first hook ever added.
  bool add(std::int64_t id, std::function<void()> hook) {
    const std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
    return !std::exchange(has_had_one_, true);
  }

  void remove(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
  }

  /// Calls all hooks. An exception of one is ignored, so that the others are called too.
  void call() noexcept {
    std::map<std::int64_t, std::function<void()>> hooks;
    {
      const std::lock_guard lock(mutex_);
      hooks = hooks_;
    }
    for (const auto& [id, hook] : hooks) {
      try {
        hook();
      } catch (...) {  // NOLINT(bugprone-empty-catch)
      }
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::function<void()>> hooks_;
  bool has_had_one_ = false;
};

}  // namespace atl::pytorch
