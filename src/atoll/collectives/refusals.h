// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "atoll/collectives/describe.h"
#include "atoll/core/error.h"

namespace atl::collectives {

/// Thrown where another rank has refused the operation. The group goes on with the next one.
class OperationRefused : public Error {
 public:
  using Error::Error;
};

/// One rank's refusal to take part in an operation of its group.
struct Refusal {
  int rank = -1;
  std::string why;
};

/// The operations of a group that some rank has refused, by number. The last kMaxRemembered are known. Thread-safe; while there are
/// none, asking costs one load.
class Refusals {
 public:
  static constexpr std::size_t kMaxRemembered = 1024;

  /// False when the operation's refusal is known already.
  bool note(std::uint64_t number, const Refusal& refusal);

  std::optional<Refusal> find(std::uint64_t number) const;
  bool contains(std::uint64_t number) const { return find(number).has_value(); }

  /// Throws OperationRefused where the operation that the collective belongs to is refused; `count` and `rank` are for the message.
  void throw_if_refused(const Signature& signature, std::uint64_t count, int rank) const;

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Refusal> refusals_;
};

/// "rank 1 refused it: <why>".
std::string describe(const Refusal& refusal);

}  // namespace atl::collectives
