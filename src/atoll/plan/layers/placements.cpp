// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/search.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "atoll/plan/apportion.h"
#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

using Counts = std::vector<std::int64_t>;

constexpr std::int64_t kMaxEnumerationSteps = 200000;  // of the enumeration, most of which may be dead ends

Placement gathered(const std::map<Counts, std::int64_t, std::greater<>>& parts) {
  Placement placement;
  for (const auto& [counts, times] : parts) placement.push_back({counts, times});
  return placement;
}

// Deals the devices class by class, each to the pipeline that has fewest.
Placement dealt(const Counts& counts, std::int64_t replicas) {
  std::vector<Counts> pipelines(static_cast<std::size_t>(replicas), Counts(counts.size(), 0));
  std::size_t next = 0;
  for (std::size_t device = 0; device < counts.size(); ++device) {
    for (std::int64_t i = 0; i < counts[device]; ++i) {
      ++pipelines[next][device];
      next = (next + 1) % pipelines.size();
    }
  }
  std::map<Counts, std::int64_t, std::greater<>> parts;
  for (const Counts& pipeline : pipelines) ++parts[pipeline];
  return gathered(parts);
}

// Makes pipelines of one class each; none if there are fewer pipelines than classes.
Placement separate(const Counts& counts, std::int64_t replicas) {
  std::vector<double> weights;
  std::vector<Bounds> bounds;
  std::int64_t classes = 0;
  for (const std::int64_t count : counts) {
    weights.push_back(static_cast<double>(count));
    bounds.push_back({count > 0 ? 1 : 0, count, 1});
    classes += count > 0 ? 1 : 0;
  }
  if (replicas < classes) return {};
  const std::vector<std::int64_t> pipelines = apportion(weights, replicas, bounds);
  std::map<Counts, std::int64_t, std::greater<>> parts;
  for (std::size_t device = 0; device < counts.size(); ++device) {
    for (std::int64_t i = 0; i < pipelines[device]; ++i) {
      Counts part(counts.size(), 0);
      part[device] = counts[device] / pipelines[device] + (i < counts[device] % pipelines[device] ? 1 : 0);
      ++parts[part];
    }
  }
  return gathered(parts);
}

class Enumeration {
 public:
  Enumeration(std::int64_t most_devices, std::int64_t most, Placements& out)
      : most_devices_(most_devices), most_(most), out_(out), known_(out.all.begin(), out.all.end()) {}

  // Parts come in descending order, so that each way occurs once.
  void divide(const Counts& left, std::int64_t replicas, const Counts& last) {
    if (!out_.complete || ++steps_ > kMaxEnumerationSteps) {
      out_.complete = false;
      return;
    }
    const std::int64_t devices = total_of(left);
    if (replicas == 0) {
      if (devices == 0) add();
      return;
    }
    if (devices < replicas || devices > replicas * most_devices_ || left[0] > replicas * last[0]) return;
    for (std::int64_t times = replicas; times >= 1; --times) choose(left, replicas, times, last);
  }

 private:
  void choose(const Counts& left, std::int64_t replicas, std::int64_t times, const Counts& last) {
    Counts part(left.size(), 0);
    for (std::size_t device = 0; device < left.size(); ++device) part[device] = left[device] / times;
    const Counts most = part;
    // Enumerates all parts of at most `most` and below `last`, in descending order.
    while (out_.complete && steps_ <= kMaxEnumerationSteps) {
      ++steps_;
      const std::int64_t devices = total_of(part);
      if (part < last && devices >= 1 && devices <= most_devices_) {
        Counts rest = left;
        for (std::size_t device = 0; device < left.size(); ++device) rest[device] -= times * part[device];
        placement_.push_back({part, times});
        divide(rest, replicas - times, part);
        placement_.pop_back();
      }
      std::size_t place = part.size();
      while (place > 0 && part[place - 1] == 0) --place;
      if (place == 0) return;
      --part[place - 1];
      std::copy(most.begin() + static_cast<std::ptrdiff_t>(place), most.end(),
                part.begin() + static_cast<std::ptrdiff_t>(place));
    }
    if (steps_ > kMaxEnumerationSteps) out_.complete = false;
  }

  void add() {
    if (known_.contains(placement_)) return;
    if (static_cast<std::int64_t>(out_.all.size()) >= most_) {
      out_.complete = false;
      return;
    }
    out_.all.push_back(placement_);
  }

  std::int64_t most_devices_;
  std::int64_t most_;
  Placements& out_;
  std::set<Placement> known_;
  Placement placement_;
  std::int64_t steps_ = 0;
};

}  // namespace

Placements placements(const std::vector<std::int64_t>& counts, std::int64_t replicas, std::int64_t most_devices,
                      std::int64_t most) {
  Placements found;
  const std::int64_t devices = total_of(counts);
  if (replicas < 1 || devices < replicas) return found;
  for (Placement& each : std::vector<Placement>{dealt(counts, replicas), separate(counts, replicas)}) {
    const bool fits = !each.empty() && std::all_of(each.begin(), each.end(), [&](const PlacementPart& part) {
      return total_of(part.counts) <= most_devices;
    });
    const bool is_new = std::ranges::find(found.all, each) == found.all.end();
    if (fits && is_new && static_cast<std::int64_t>(found.all.size()) < most) found.all.push_back(std::move(each));
  }
  Counts last = counts;
  ++last[0];  // above all parts
  Enumeration(most_devices, most, found).divide(counts, replicas, last);
  return found;
}

}  // namespace atl::plan
