// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "atoll/collectives/describe.h"
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

/// One rank's refusal to take part in an operation of its group.
struct Refusal {
  int rank = -1;
  std::string why;
};

/// Returns "rank 1 refused it: <why>".
inline std::string describe(const Refusal& refusal) {
  return "rank " + std::to_string(refusal.rank) + " refused it: " + refusal.why;
}

/// Thrown for an operation that another rank has refused. The group continues with the next one.
class OperationRefused : public Error {
 public:
  using Error::Error;
};

/// The operations of a group that a rank has refused, by number. The last kMaxRemembered are kept. Thread-safe; while
/// there are none, a query costs one load.
class Refusals {
 public:
  static constexpr std::size_t kMaxRemembered = 1024;

  /// Returns false if the operation was known to be refused already.
  bool note(std::uint64_t number, const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    if (!refusals_.try_emplace(number, refusal).second) return false;
    if (refusals_.size() > kMaxRemembered) refusals_.erase(refusals_.begin());
    any_.store(true, std::memory_order_release);
    return true;
  }

  std::optional<Refusal> find(std::uint64_t number) const {
    if (!any_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto known = refusals_.find(number);
    return known == refusals_.end() ? std::nullopt : std::optional(known->second);
  }
  bool contains(std::uint64_t number) const { return find(number).has_value(); }

  /// Throws OperationRefused if the operation that the collective belongs to was refused. `count` and `rank` are for
  /// the error text.
  void throw_if_refused(const Signature& signature, std::uint64_t count, int rank) const {
    const auto refusal = find(number_of(signature.sequence));
    if (!refusal) return;
    throw OperationRefused(ErrorKind::kMismatch,
                           describe(signature, count) + " on rank " + std::to_string(rank) + ": " + describe(*refusal));
  }

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Refusal> refusals_;
};

}  // namespace atl::collectives
