// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/turns.h"

#include <algorithm>
#include <utility>

namespace atl::infer {

void Turns::want(Who who, Clock::time_point now) {
  const bool runs = std::any_of(running_.begin(), running_.end(), [&](const Turn& turn) { return turn.who == who; });
  if (runs || std::find(waiting_.begin(), waiting_.end(), who) != waiting_.end()) return;
  if (running_.size() >= at_once_) {
    waiting_.push_back(who);
    load_.waits(who, now);
    return;
  }
  running_.push_back({who, now});
  load_.runs(who, now);
  give_(who);
}

void Turns::over(Who who, Clock::time_point now) {
  std::erase(waiting_, who);
  std::erase_if(running_, [&](const Turn& turn) { return turn.who == who; });
  load_.rests(who, now);
  while (running_.size() < at_once_ && !waiting_.empty()) {
    const Who next = waiting_.front();
    waiting_.pop_front();
    running_.push_back({next, now});
    load_.runs(next, now);
    give_(next);
  }
}

void Turns::forget(Who who, Clock::time_point now) {
  over(who, now);
  load_.forget(who);
}

std::size_t Turns::before(Who who) const noexcept {
  const auto place = std::find(waiting_.begin(), waiting_.end(), who);
  return place == waiting_.end() ? 0 : static_cast<std::size_t>(place - waiting_.begin()) + running_.size();
}

std::vector<Turns::Who> Turns::longer_than(Clock::duration limit, Clock::time_point now) const {
  std::vector<Who> found;
  for (const Turn& turn : running_) {
    if (now - turn.begun > limit) found.push_back(turn.who);
  }
  return found;
}

}  // namespace atl::infer
