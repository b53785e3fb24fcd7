// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/shared_medium.h"

#include <algorithm>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan::fleet {

void SharedMedium::start(std::size_t sender, double seconds, std::vector<double> marks, double now) {
  catch_up(now);
  messages_.push_back({sender, seconds, now, now, std::move(marks), 0});
}

double SharedMedium::next() const noexcept {
  double time = kInfinity;
  for (const Message& message : messages_) time = std::min(time, time_of_next(message));
  return time;
}

std::vector<SharedMedium::Passed> SharedMedium::pass(double now) {
  std::vector<Passed> result;
  bool is_any_over = false;
  for (Message& message : messages_) {
    while (message.passed < message.marks.size() && time_of_next(message) <= now) {
      const std::size_t mark = message.passed++;
      const bool is_last = message.passed == message.marks.size();
      result.push_back({message.sender, mark, is_last, message.started});
      is_any_over = is_any_over || is_last;
    }
  }
  if (!is_any_over) return result;
  catch_up(now);
  std::erase_if(messages_, [](const Message& message) { return message.passed == message.marks.size(); });
  return result;
}

double SharedMedium::time_of_next(const Message& message) const noexcept {
  return message.since + (message.left - message.marks[message.passed]) / share();
}

void SharedMedium::catch_up(double now) noexcept {
  for (Message& message : messages_) {
    message.left -= (now - message.since) * share();
    message.since = now;
  }
}

}  // namespace atl::plan::fleet
