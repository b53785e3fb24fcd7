// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/ties.h"

#include <algorithm>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::size_t kMaxCases = 4096;

// Lets no stage with `item` begin before `first`.
void begin_from(std::vector<std::size_t>& lowest, std::size_t item, std::size_t first) {
  for (std::size_t end = item + 1; end < lowest.size(); ++end) lowest[end] = std::max(lowest[end], first);
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
      for (std::size_t other = 0; other < costs_.classes(); ++other) {
        const std::size_t before = items_[other == device ? place - 1 : place];
        begin_from(parted.lowest[other], items_[place], before + 1);
      }
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
  std::vector<TieCase> cases(1);
  cases.front().blocked.assign(costs.items() + 1, 0);
  cases.front().lowest.assign(costs.classes(), std::vector<std::size_t>(costs.items() + 1, 0));
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
      if (tie.held(stage.begin, stage.end) > 0) members.push_back(stage.device);
    }
    seconds += costs.reduce_seconds(tie.gradient_bytes, members);
  }
  return seconds;
}

}  // namespace atl::plan
