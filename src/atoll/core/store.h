// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"

namespace atl {

/// The part of the job's key-value store that Atoll needs: ranks meet through it once per group. Implemented by the
/// PyTorch glue over c10d::Store. All calls are thread-safe and throw Error(kStore) when the store is gone.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<std::byte>& value) = 0;

  /// Blocks until `key` exists; throws Error(kTimeout) naming the key at `deadline`.
  virtual std::vector<std::byte> get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace atl
