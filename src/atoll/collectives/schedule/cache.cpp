// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/cache.h"

#include <algorithm>

namespace atl::collectives {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 32);
}

std::uint64_t hash_of(const Shape& shape) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(shape.operation), static_cast<std::uint64_t>(shape.dtype));
  hash = mix(hash, static_cast<std::uint64_t>(shape.root) * 2 + (shape.library_inside ? 1 : 0));
  for (const std::uint64_t count : shape.counts) hash = mix(hash, count);
  for (const std::uint64_t count : shape.receive_counts) hash = mix(hash, ~count);
  return hash;
}

}  // namespace

ScheduleCache::ScheduleCache(Builder build, std::size_t max_schedules, std::size_t max_steps)
    : build_(std::move(build)), max_schedules_(std::max<std::size_t>(1, max_schedules)), max_steps_(max_steps) {}

std::shared_ptr<const Schedule> ScheduleCache::get(const Shape& shape) {
  const std::uint64_t hash = hash_of(shape);
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find(shape, hash)) return known;
  }
  auto built = std::make_shared<const Schedule>(build_(shape));
  const std::lock_guard lock(mutex_);
  if (auto known = find(shape, hash)) return known;  // another thread was faster
  hashes_.push_back(hash);
  entries_.push_back({shape, built, ++uses_});
  steps_ += built->steps.size();
  evict();
  return built;
}

std::shared_ptr<const Schedule> ScheduleCache::find(const Shape& shape, std::uint64_t hash) {
  const auto is_it = [&](std::size_t place) {
    return place < hashes_.size() && hashes_[place] == hash && entries_[place].shape == shape;
  };
  std::uint32_t& place = place_of_[hash % place_of_.size()];
  if (!is_it(place)) {
    std::uint32_t next = 0;
    while (next < hashes_.size() && !is_it(next)) ++next;
    if (next == hashes_.size()) return nullptr;
    place = next;
  }
  entries_[place].last_use = ++uses_;
  return entries_[place].schedule;
}

// The entry just added was used last, so it would be evicted last.
void ScheduleCache::evict() {
  while (entries_.size() > 1 && (entries_.size() > max_schedules_ || steps_ > max_steps_)) {
    const auto oldest = std::ranges::min_element(entries_, {}, &Entry::last_use);
    const auto index = oldest - entries_.begin();
    steps_ -= oldest->schedule->steps.size();
    std::swap(hashes_[static_cast<std::size_t>(index)], hashes_.back());
    std::swap(*oldest, entries_.back());
    hashes_.pop_back();
    entries_.pop_back();
  }
}

}  // namespace atl::collectives
