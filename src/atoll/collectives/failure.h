// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include "atoll/core/error.h"

namespace atl::collectives {

/// Holds the first error of a group. Thread-safe; checking costs one atomic load.
class Failure {
 public:
  /// Returns true if this was the first error.
  bool set(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = std::make_exception_ptr(error);
    is_set_.store(true, std::memory_order_release);
    return true;
  }
  bool is_set() const noexcept { return is_set_.load(std::memory_order_acquire); }
  std::exception_ptr get() const noexcept {
    if (!is_set()) return nullptr;
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void throw_if_set() const {
    if (is_set()) std::rethrow_exception(get());
  }

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace atl::collectives
