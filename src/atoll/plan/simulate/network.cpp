// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/network.h"

#include <algorithm>
#include <cstddef>

#include "atoll/plan/numbers.h"

namespace atl::plan::simulated {

int FairRails::add(double bytes_per_second) {
  rails_.emplace_back().capacity = bytes_per_second;
  return static_cast<int>(rails_.size()) - 1;
}

double FairRails::used(int rail) const {
  double sum = 0;
  for (const int each : rails_[static_cast<std::size_t>(rail)].flows) sum += rate(each);
  return sum;
}

// Marks as changed all flows of a rail that is, or was, full.
void FairRails::touch(int index) {
  for (const int each : rail(index).flows) changed_.push_back(each);
}

int FairRails::start(const std::vector<int>& rails, double most, double bytes, double now) {
  if (free_.empty()) {
    free_.push_back(static_cast<int>(flows_.size()));
    flows_.emplace_back();
  }
  const int index = free_.back();
  free_.pop_back();
  Flow& started = flow(index);
  started.rails = rails;
  started.most = most;
  for (const int each : rails) {
    const auto times = static_cast<double>(std::count(rails.begin(), rails.end(), each));
    started.most = std::min(started.most, rail(each).capacity / times);
  }
  started.left = bytes;
  started.since = now;
  started.rate = 0;
  started.is_on = true;
  for (const int each : rails) {
    Rail& used = rail(each);
    used.flows.push_back(index);
    used.demand += started.most;
    used.carried += bytes;
  }
  changed_.push_back(index);
  return index;
}

void FairRails::end(int index) {
  Flow& ended = flow(index);
  ended.is_on = false;
  ended.rate = 0;
  endings_.erase(ended.ending);
  for (const int each : ended.rails) {
    Rail& used = rail(each);
    const bool was_full = is_full(used);
    used.flows.erase(std::find(used.flows.begin(), used.flows.end(), index));
    // Rounding errors of the sum are dropped with the last flow.
    used.demand = used.flows.empty() ? 0 : used.demand - ended.most;
    if (was_full) touch(each);
  }
  free_.push_back(index);
}

// Collects, from `changed_`, the flows in `group_` and the full rails in `full_`.
void FairRails::connect() {
  group_.clear();
  full_.clear();
  const auto take = [&](int index) {
    Flow& taken = flow(index);
    if (!taken.is_on || taken.is_marked) return;
    taken.is_marked = true;
    group_.push_back(index);
  };
  for (const int each : changed_) take(each);
  changed_.clear();
  for (std::size_t i = 0; i < group_.size(); ++i) {
    for (const int each : flow(group_[i]).rails) {
      Rail& used = rail(each);
      if (used.is_marked || !is_full(used)) continue;
      used.is_marked = true;
      full_.push_back(each);
      for (const int other : used.flows) take(other);
    }
  }
}

void FairRails::fix(int index, double rate, double now) {
  Flow& fixed = flow(index);
  fixed.is_marked = false;
  for (const int each : fixed.rails) {
    Rail& used = rail(each);
    if (!used.is_marked) continue;
    used.left -= rate;
    if (--used.users > 0) shares_.push({std::max(used.left, 0.0) / used.users, each});
  }
  if (rate == fixed.rate) return;
  fixed.left = std::max(0.0, fixed.left - fixed.rate * (now - fixed.since));
  fixed.since = now;
  fixed.rate = rate;
  endings_.erase(fixed.ending);
  fixed.ending = {now + fixed.left / rate, order_++, index};
  endings_.insert(fixed.ending);
}

// Progressive filling: all rates grow together until a rail is full or a flow reaches its maximum; those stay, the
// others continue.
void FairRails::share(double now) {
  for (const int each : full_) {
    Rail& used = rail(each);
    used.left = used.capacity;
    used.users = static_cast<int>(used.flows.size());
    shares_.push({used.left / used.users, each});
  }
  std::sort(group_.begin(), group_.end(),
            [&](int a, int b) { return flow(a).most != flow(b).most ? flow(a).most < flow(b).most : a < b; });
  double level = 0;
  for (std::size_t i = 0; i < group_.size();) {
    if (!flow(group_[i]).is_marked) {
      ++i;
      continue;
    }
    while (!shares_.empty()) {
      const Rail& first = rail(shares_.top().rail);
      if (first.users > 0 && shares_.top().share == std::max(first.left, 0.0) / first.users) break;
      shares_.pop();  // out of date
    }
    if (shares_.empty() || flow(group_[i]).most <= shares_.top().share) {
      level = std::max(level, flow(group_[i]).most);
      fix(group_[i], flow(group_[i]).most, now);
      ++i;
      continue;
    }
    const Share narrowest = shares_.top();
    shares_.pop();
    // Shares only grow; rounding of the last ones must not stop a flow.
    level = std::max(level, narrowest.share);
    const std::vector<int> members = rail(narrowest.rail).flows;
    for (const int each : members) {
      if (flow(each).is_marked) fix(each, std::min(level, flow(each).most), now);
    }
  }
  while (!shares_.empty()) shares_.pop();
  for (const int each : full_) rail(each).is_marked = false;
}

void FairRails::settle(double now) {
  if (changed_.empty()) return;
  connect();
  share(now);
}

double FairRails::next() const noexcept { return endings_.empty() ? kInfinity : endings_.begin()->time; }

std::vector<int> FairRails::finish(double now) {
  std::vector<int> ended;
  while (next() <= now) {
    ended.push_back(endings_.begin()->flow);
    end(ended.back());
  }
  return ended;
}

}  // namespace atl::plan::simulated
