// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// What is known of each type of device, stated by its vendor's row. Thread-safe.
template <typename Fact>
class ByDevice {
 public:
  void set(c10::DeviceType type, const Fact& fact) {
    const std::lock_guard lock(mutex_);
    facts_[type] = fact;
  }

  std::optional<Fact> find(c10::DeviceType type) const {
    const std::lock_guard lock(mutex_);
    const auto found = facts_.find(type);
    return found == facts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<c10::DeviceType, Fact> facts_;
};

}  // namespace atl::pytorch
