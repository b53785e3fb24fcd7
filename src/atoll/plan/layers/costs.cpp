// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/costs.h"

#include <algorithm>

#include "atoll/plan/cost.h"
#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

struct ItemSeconds {
  double forward = 0;
  double backward = 0;
  double accumulate = 0;
};

ItemSeconds at(const std::vector<LayerTime>& times, std::int64_t micro_batch) {
  const auto seconds = [&](double LayerTime::*part) {
    std::vector<Point> points;
    for (const LayerTime& time : times) points.push_back({time.samples, time.*part});
    return Cost::table(std::move(points)).seconds(micro_batch);
  };
  return {seconds(&LayerTime::forward), seconds(&LayerTime::backward), seconds(&LayerTime::accumulate)};
}

void add(std::vector<double>& sums, double value) { sums.push_back(sums.back() + value); }

}  // namespace

LayerCosts::LayerCosts(const LayerRequest& request, std::int64_t micro_batch)
    : request_(request), micro_batch_(micro_batch), state_{0}, kept_{0}, inputs_{0} {
  if (request.schedule == LayerSchedule::kInterleaved) chunks_ = static_cast<double>(request.chunks);
  overlaps_ = request.transfers == LayerOverlap::kOverlapped;
  const auto samples = static_cast<double>(micro_batch);
  for (std::size_t device = 0; device < classes(); ++device) {
    std::vector<double> forward{0};
    std::vector<double> once{0};
    std::vector<double> twice{0};
    std::vector<double> added{0};
    for (const LayerItem& item : request.items) {
      const ItemSeconds seconds = at(item.times[device], micro_batch);
      add(forward, seconds.forward);
      add(once, seconds.forward + seconds.backward);
      add(twice, seconds.forward + seconds.backward + (item.recompute_bytes ? seconds.forward : 0));
      add(added, seconds.accumulate);
    }
    forward_.push_back(std::move(forward));
    total_[0].push_back(std::move(once));
    total_[1].push_back(std::move(twice));
    added_.push_back(std::move(added));
    cap_.push_back(request.devices[device].memory_bytes * (1 - request.margin));
  }
  std::vector<double> most;
  for (const LayerItem& item : request.items) {
    add(state_, item.state_bytes());
    add(kept_, samples * item.kept_bytes);
    add(inputs_, samples * item.recompute_bytes.value_or(item.kept_bytes));
    output_.push_back(samples * item.output_bytes);
    most.push_back(item.recompute_bytes ? samples * item.kept_bytes : 0);
  }
  most_.push_back(std::move(most));
  for (std::size_t width = 1; 2 * width <= items(); width *= 2) {
    const std::vector<double>& half = most_.back();
    std::vector<double> next;
    for (std::size_t i = 0; i + 2 * width <= items(); ++i) next.push_back(std::max(half[i], half[i + width]));
    most_.push_back(std::move(next));
  }
}

double LayerCosts::most_kept(std::size_t begin, std::size_t end) const {
  std::size_t level = 0;
  while (std::size_t{2} << level <= end - begin) ++level;
  return std::max(most_[level][begin], most_[level][end - (std::size_t{1} << level)]);
}

// While one item is recomputed and run backward, its own activations are held once.
double LayerCosts::memory(std::size_t begin, std::size_t end, bool recompute, double in_flight) const {
  double bytes = state_[end] - state_[begin];
  for (const LayerTie& tie : request_.ties) {
    const auto held = std::count_if(tie.items.begin(), tie.items.end(),
                                    [&](std::size_t item) { return item >= begin && item < end; });
    if (held > 1) bytes -= static_cast<double>(held - 1) * tie.state_bytes();
  }
  if (!recompute) return bytes + in_flight * (kept_[end] - kept_[begin]);
  return bytes + in_flight * (inputs_[end] - inputs_[begin]) + most_kept(begin, end);
}

bool LayerCosts::needs_stages() const noexcept {
  return request_.schedule == LayerSchedule::kInterleaved || request_.schedule == LayerSchedule::kZeroBubble;
}

double LayerCosts::in_flight(std::int64_t from_end, std::int64_t stages, std::int64_t micro_batches) const {
  switch (request_.schedule) {
    case LayerSchedule::k1F1B: return static_cast<double>(std::min(from_end, micro_batches));
    case LayerSchedule::kGPipe: return static_cast<double>(micro_batches);
    case LayerSchedule::kZeroBubble: return static_cast<double>(std::min(stages, micro_batches));
    case LayerSchedule::kInterleaved: {
      const auto chunks = static_cast<std::int64_t>(chunks_);
      const std::int64_t held = 2 * (from_end - 1) + (chunks - 1) * stages + 1;
      return static_cast<double>(std::min(held, micro_batches * chunks)) / chunks_;
    }
  }
  return 0;
}

double LayerCosts::reduce_seconds(double bytes, const std::vector<std::size_t>& members) const {
  if (members.size() < 2) return 0;
  LayerLink slowest;
  for (std::size_t a = 0; a < members.size(); ++a) {
    for (std::size_t b = a + 1; b < members.size(); ++b) {
      const LayerLink& link = request_.links[members[a] * classes() + members[b]];
      slowest.latency = std::max(slowest.latency, link.latency);
      slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, link.seconds_per_byte);
    }
  }
  const auto steps = static_cast<double>(2 * (members.size() - 1));
  return steps * slowest.seconds(bytes / static_cast<double>(members.size()));
}

double LayerCosts::least(const std::vector<std::int64_t>& counts, std::size_t item, const std::vector<double>& prices,
                         OfItem seconds) const {
  double best = kInfinity;
  for (std::size_t device = 0; device < classes(); ++device) {
    if (counts[device] > 0) best = std::min(best, prices[device] * (this->*seconds)(device, item));
  }
  return best;
}

// A price for a second of each class, in proportion to its speed on the whole model: for any division of the items, all
// seconds together cost at least the cheapest of each item, and at most the period (linear programming duality).
double LayerCosts::spread(const std::vector<std::int64_t>& counts, OfItem seconds) const {
  const bool recompute = request_.recompute == LayerRecompute::kAlways;
  std::vector<double> prices(classes(), 0);
  double speed = 0;
  for (std::size_t device = 0; device < classes(); ++device) {
    const double whole = compute(device, 0, items(), recompute);
    if (counts[device] == 0) continue;
    if (whole <= 0) return 0;
    prices[device] = 1 / whole;
    speed += static_cast<double>(counts[device]) / whole;
  }
  double sum = 0;
  for (std::size_t item = 0; item < items(); ++item) sum += least(counts, item, prices, seconds);
  return speed > 0 ? sum / speed : 0;
}

double LayerCosts::least_fill(const std::vector<std::int64_t>& counts) const {
  const std::vector<double> ones(classes(), 1);
  double sum = 0;
  for (std::size_t item = 0; item < items(); ++item) sum += least(counts, item, ones, &LayerCosts::first_item);
  return sum;
}

double LayerCosts::longest_item(const std::vector<std::int64_t>& counts) const {
  const std::vector<double> ones(classes(), 1);
  double longest = 0;
  for (std::size_t item = 0; item < items(); ++item)
    longest = std::max(longest, least(counts, item, ones, &LayerCosts::steady_item));
  return longest;
}

}  // namespace atl::plan
