// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/turns.h"

#include <algorithm>
#include <utility>

namespace atl::infer {

void Turns::want(Key key, Clock::time_point now) {
  const bool runs = std::any_of(running_.begin(), running_.end(), [&](const Turn& turn) { return turn.key == key; });
  if (runs || std::find(waiting_.begin(), waiting_.end(), key) != waiting_.end()) return;
  if (running_.size() >= at_once_) {
    waiting_.push_back(key);
    load_.waits(key, now);
    return;
  }
  running_.push_back({key, now});
  load_.runs(key, now);
  give_(key);
}

void Turns::over(Key key, Clock::time_point now) {
  std::erase(waiting_, key);
  std::erase_if(running_, [&](const Turn& turn) { return turn.key == key; });
  load_.rests(key, now);
  while (running_.size() < at_once_ && !waiting_.empty()) {
    const Key next = waiting_.front();
    waiting_.pop_front();
    running_.push_back({next, now});
    load_.runs(next, now);
    give_(next);
  }
}

void Turns::forget(Key key, Clock::time_point now) {
  over(key, now);
  load_.forget(key);
}

std::size_t Turns::before(Key key) const noexcept {
  const auto place = std::find(waiting_.begin(), waiting_.end(), key);
  return place == waiting_.end() ? 0 : static_cast<std::size_t>(place - waiting_.begin()) + running_.size();
}

std::vector<Turns::Key> Turns::longer_than(Clock::duration limit, Clock::time_point now) const {
  std::vector<Key> found;
  for (const Turn& turn : running_) {
    if (now - turn.started > limit) found.push_back(turn.key);
  }
  return found;
}

}  // namespace atl::infer
