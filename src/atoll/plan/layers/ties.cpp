// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/ties.h"

#include <algorithm>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::size_t kMaxCases = 4096;

TieCase free_case(const LayerCosts& costs) {
  TieCase free;
  free.blocked.assign(costs.items() + 1, 0);
  free.lowest.assign(costs.classes(), std::vector<std::size_t>(costs.items() + 1, 0));
  return free;
}

// Separates the tied items from `item` on from the one before: no stage has both.
void part(TieCase& each, std::size_t before, std::size_t item) {
  for (std::vector<std::size_t>& lowest : each.lowest) {
    for (std::size_t end = item + 1; end < lowest.size(); ++end) lowest[end] = std::max(lowest[end], before + 1);
  }
}

void force(TieCase& each, std::size_t item, std::size_t device) {
  for (std::size_t other = 0; other < each.lowest.size(); ++other) {
    if (other == device) continue;
    std::vector<std::size_t>& lowest = each.lowest[other];
    for (std::size_t end = item + 1; end < lowest.size(); ++end) lowest[end] = std::max(lowest[end], item + 1);
  }
}

// Enumerates the gaps between a tie's items, from the first: joined, or separated, with each class for the later stage.
class Ways {
 public:
  Ways(const LayerCosts& costs, const std::vector<std::int64_t>& counts, const LayerTie& tie)
      : costs_(costs), counts_(counts), tie_(tie), items_(tie.items) {
    std::sort(items_.begin(), items_.end());
  }

  void extend(const TieCase& from, std::vector<TieCase>& out) { choose(1, from, {}, out); }

 private:
  void choose(std::size_t place, const TieCase& from, const std::vector<std::size_t>& classes,
              std::vector<TieCase>& out) {
    if (place == items_.size()) {
      out.push_back(priced(from, classes));
      if (out.size() > kMaxCases) refuse("the ties can lie in more than 4096 ways: tie fewer items");
      return;
    }
    TieCase joined = from;
    for (std::size_t i = items_[place - 1] + 1; i <= items_[place]; ++i) joined.blocked[i] = 1;
    choose(place + 1, joined, classes, out);
    if (!tie_.apart) return;
    for (std::size_t device = 0; device < costs_.classes(); ++device) {
      if (counts_[device] == 0) continue;
      TieCase parted = from;
      part(parted, items_[place - 1], items_[place]);
      force(parted, items_[place], device);
      std::vector<std::size_t> more = classes;
      more.push_back(device);
      choose(place + 1, parted, more, out);
    }
  }

  TieCase priced(TieCase each, std::vector<std::size_t> classes) const {
    if (classes.empty()) return each;
    TieCost cost{items_.front(), std::vector<double>(costs_.classes(), 0)};
    double least = kInfinity;
    classes.push_back(0);
    for (std::size_t device = 0; device < costs_.classes(); ++device) {
      classes.back() = device;
      cost.seconds[device] = costs_.reduce_seconds(tie_.gradient_bytes, classes);
      if (counts_[device] > 0) least = std::min(least, cost.seconds[device]);
    }
    each.least += least;
    each.costs.push_back(std::move(cost));
    return each;
  }

  const LayerCosts& costs_;
  const std::vector<std::int64_t>& counts_;
  const LayerTie& tie_;
  std::vector<std::size_t> items_;
};

}  // namespace

std::vector<TieCase> tie_cases(const LayerCosts& costs, const std::vector<std::int64_t>& counts) {
  std::vector<TieCase> cases{free_case(costs)};
  for (const LayerTie& tie : costs.request().ties) {
    std::vector<TieCase> next;
    for (const TieCase& each : cases) Ways(costs, counts, tie).extend(each, next);
    cases = std::move(next);
  }
  return cases;
}

double tie_seconds(const LayerCosts& costs, const std::vector<LayerStage>& stages) {
  double seconds = 0;
  for (const LayerTie& tie : costs.request().ties) {
    std::vector<std::size_t> members;
    for (const LayerStage& stage : stages) {
      const bool holds = std::any_of(tie.items.begin(), tie.items.end(),
                                     [&](std::size_t item) { return item >= stage.begin && item < stage.end; });
      if (holds) members.push_back(stage.device);
    }
    seconds += costs.reduce_seconds(tie.gradient_bytes, members);
  }
  return seconds;
}

}  // namespace atl::plan
