// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// One rank's schedules by shape, built on first use. Keeps the most recently used ones within two bounds: their
/// number, and the total number of their steps (a step takes about a hundred bytes); the one just returned is always
/// kept. Thread-safe; finding a known one allocates nothing.
class ScheduleCache {
 public:
  static constexpr std::size_t kMaxSchedules = 128;
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 20;

  using Builder = std::function<Schedule(const Shape& shape)>;

  /// `build` makes schedules that are not in the cache; it may run on several threads at once.
  explicit ScheduleCache(Builder build, std::size_t max_schedules = kMaxSchedules, std::size_t max_steps = kMaxSteps);

  /// Returns the schedule for `shape`, which stays valid as long as it is held. Throws what the builder throws; nothing
  /// is kept then.
  std::shared_ptr<const Schedule> get(const Shape& shape);

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Shape shape;
    std::shared_ptr<const Schedule> schedule;
    std::uint64_t last_use = 0;
  };
  std::shared_ptr<const Schedule> find(const Shape& shape, std::uint64_t hash);
  void evict();

  const Builder build_;
  const std::size_t max_schedules_;
  const std::size_t max_steps_;
  mutable std::mutex mutex_;
  std::array<std::uint32_t, 256> place_of_{};  // by the hash's last byte: index of the entry found last
  std::vector<std::uint64_t> hashes_;          // separate from the entries, so that a search reads few cache lines
  std::vector<Entry> entries_;
  std::size_t steps_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace atl::collectives
