// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "atoll/core/error.h"
#include "atoll/core/store.h"

namespace atl {

/// A store for ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::vector<std::byte>& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::vector<std::byte> get(const std::string& key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto exists = [&] { return values_.count(key) > 0; };
    const bool found =
        deadline.is_never() ? (changed_.wait(lock, exists), true) : changed_.wait_until(lock, deadline.when(), exists);
    if (!found) throw Error(ErrorKind::kTimeout, "the key \"" + key + "\" did not appear in the store in time");
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> values_;
};

}  // namespace atl
