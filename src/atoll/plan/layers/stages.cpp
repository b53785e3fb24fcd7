// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/pipeline.h"

#include <algorithm>
#include <numeric>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::size_t kMaxStates = std::size_t{1} << 24;

// Returns the first of [0, end] for which `fits` holds, as it does for all later ones; `end` stands for none.
template <class Fits>
std::size_t first_that(std::size_t end, const Fits& fits) {
  return last_that(std::size_t{0}, end, [&](std::size_t past) { return !fits(past - 1); });
}

}  // namespace

StageSearch::StageSearch(const LayerCosts& costs, std::vector<std::int64_t> counts, std::int64_t micro_batches,
                         std::int64_t stages, bool leave_out, double extra_bytes)
    : costs_(costs),
      counts_(std::move(counts)),
      micro_batches_(micro_batches),
      stages_(stages),
      leave_out_(leave_out),
      items_(costs.items()),
      classes_(costs.classes()) {
  for (std::int64_t& count : counts_) {
    if (leave_out_) count = std::min(count, static_cast<std::int64_t>(items_));  // no more have a stage
    all_ += count;
  }
  for (const std::int64_t count : counts_) {
    unit_.push_back(codes_);
    const auto width = static_cast<std::size_t>(count) + 1;
    if (width > kMaxStates / codes_) codes_ = kMaxStates;
    codes_ *= width;
  }
  if (codes_ > kMaxStates / (classes_ * (items_ + 1))) {
    refuse("stages of " + std::to_string(items_) + " items on " + std::to_string(classes_) +
           " classes of devices have more than 2^24 states: give equal devices as one class, join items, or "
           "allow more replicas");
  }
  for (std::size_t code = 0; code < codes_; ++code) {
    std::int64_t sum = 0;
    for (std::size_t device = 0; device < classes_; ++device) {
      digits_.push_back(static_cast<std::int64_t>(code / unit_[device]) % (counts_[device] + 1));
      sum += digits_.back();
    }
    total_.push_back(sum);
  }
  for (std::size_t device = 0; device < classes_; ++device) cap_.push_back(costs.cap(device) + extra_bytes);
  const bool always = costs.request().recompute == LayerRecompute::kAlways;
  least_before_.push_back(0);
  for (std::size_t item = 0; item < items_; ++item) {
    double least = kInfinity;
    for (std::size_t device = 0; device < classes_; ++device) {
      if (counts_[device] > 0) least = std::min(least, costs.compute(device, item, item + 1, always));
    }
    least_before_.push_back(least_before_.back() + least);
  }
  find_memory_limits();
}

double StageSearch::flight(std::int64_t from_end) const {
  return costs_.in_flight(from_end, most_stages(), micro_batches_);
}

void StageSearch::find_memory_limits() {
  const std::size_t most = std::min(static_cast<std::size_t>(all_), items_);
  for (const bool recompute : {false, true}) {
    const bool may = costs_.allows(recompute);
    std::vector<std::size_t>& limits = memory_limit_[recompute];
    for (std::size_t device = 0; device < classes_; ++device) {
      for (std::size_t from_end = 1; from_end <= most; ++from_end) {
        const double held = flight(static_cast<std::int64_t>(from_end));
        for (std::size_t end = 0; end <= items_; ++end) {
          limits.push_back(!may ? end : first_that(end, [&](std::size_t begin) {
            return costs_.memory(begin, end, recompute, held) <= cap_[device];
          }));
        }
      }
    }
  }
}

std::size_t StageSearch::lowest(std::size_t device, std::int64_t from_end, std::size_t end, bool recompute) const {
  const std::size_t most = std::min(static_cast<std::size_t>(all_), items_);
  return memory_limit_[recompute][(device * most + static_cast<std::size_t>(from_end) - 1) * (items_ + 1) + end];
}

void StageSearch::find_busy_limits(double limit) {
  for (const bool recompute : {false, true}) {
    std::vector<std::size_t>& limits = busy_limit_[recompute];
    limits.clear();
    for (std::size_t device = 0; device < classes_; ++device) {
      for (std::size_t next = 0; next <= classes_; ++next) {
        limits.push_back(0);
        for (std::size_t end = 1; end <= items_; ++end) {
          limits.push_back(first_that(
              end, [&](std::size_t begin) { return costs_.busy(device, next, begin, end, recompute) <= limit; }));
        }
      }
    }
  }
}

bool StageSearch::is_last(std::size_t code) const {
  if (stages_ > 0) return total_[code] == stages_;
  return leave_out_ ? code > 0 : code + 1 == codes_;
}

bool StageSearch::fits(const std::vector<char>& blocked) const {
  std::vector<std::vector<int>> reached(codes_);
  reached[0].assign(items_ + 1, 0);
  reached[0][items_] = 1;
  for (std::size_t code = 0; code < codes_; ++code) {
    std::vector<int>& begins = reached[code];
    if (begins.empty()) continue;
    if (code > 0) {  // of differences
      std::partial_sum(begins.begin(), begins.end(), begins.begin());
      if (begins[0] > 0 && is_last(code)) return true;
    }
    for (std::size_t device = 0; device < classes_; ++device) {
      if (digit(code, device) == counts_[device]) continue;
      const std::int64_t from_end = total_[code] + 1;
      if (static_cast<std::size_t>(from_end) > items_ || (stages_ > 0 && from_end > stages_)) continue;
      std::vector<int>& to = reached[code + unit_[device]];
      if (to.empty()) to.assign(items_ + 1, 0);
      for (std::size_t end = 1; end <= items_; ++end) {
        if (begins[end] <= 0 || blocked[end]) continue;
        const std::size_t low = std::min(lowest(device, from_end, end, false), lowest(device, from_end, end, true));
        if (low >= end) continue;
        ++to[low];
        --to[end];
      }
    }
  }
  return false;
}

std::size_t StageSearch::reach_before(std::size_t code, double limit) const {
  std::size_t latest = 0;
  for (std::size_t device = 0; device < classes_; ++device) {
    if (digit(code, device) == 0) continue;
    const std::size_t begin = late_[code - unit_[device]];
    // If all devices must be used, the stages that follow are as many as the devices not in `code`.
    const double held = flight(leave_out_ ? 1 : all_ - total_[code] + 1);
    const auto stays = [&](std::size_t end, bool recompute) {
      return costs_.allows(recompute) && costs_.compute(device, begin, end, recompute) <= limit &&
             costs_.memory(begin, end, recompute, held) <= cap_[device];
    };
    const std::size_t out = first_that(items_ - begin, [&](std::size_t more) {
      return !stays(begin + more + 1, false) && !stays(begin + more + 1, true);
    });
    latest = std::max(latest, begin + out);
  }
  return latest;
}

void StageSearch::find_reach(double limit) {
  reach_.assign(codes_, items_);
  late_.assign(codes_, 0);
  for (std::size_t code = 1; code < codes_; ++code) {
    late_[code] = reach_before(code, limit);
    if (static_cast<std::size_t>(total_[code]) > items_) continue;
    for (std::size_t device = 0; device < classes_; ++device) {
      if (digit(code, device) == 0) continue;
      const std::size_t end = reach_[code - unit_[device]];
      for (const bool recompute : {false, true}) {
        const std::size_t busy = busy_limit_[recompute][(device * (classes_ + 1) + classes_) * (items_ + 1) + end];
        const std::size_t low = std::max(busy, lowest(device, total_[code], end, recompute));
        reach_[code] = std::min({reach_[code], end, low});
      }
    }
  }
}

void StageSearch::charge(const TieCase& ties) {
  for (const bool recompute : {false, true}) {
    charged_[recompute].clear();
    for (std::size_t device = 0; device < classes_; ++device) {
      std::vector<double> totals = costs_.totals(device, recompute);
      for (const TieCost& cost : ties.costs) {
        for (std::size_t i = cost.item + 1; i <= items_; ++i) totals[i] += costs_.chunks() * cost.seconds[device];
      }
      charged_[recompute].push_back(std::move(totals));
    }
  }
}

double StageSearch::value_at(std::size_t code, std::size_t device, std::size_t end) const {
  if (code == 0) return end == items_ && device == classes_ ? 0 : kInfinity;
  return device == classes_ ? kInfinity : value_[cell(code, device) + end];
}

void StageSearch::relax(std::size_t to, std::size_t first, std::size_t last, double base,
                        const std::vector<double>& totals) {
  double* const values = value_.data() + to;
  const double* const sums = totals.data();
  for (std::size_t i = first; i <= last; ++i) {
    const double value = base - sums[i];
    values[i] = value < values[i] ? value : values[i];
  }
  extended_ += static_cast<std::int64_t>(last - first + 1);
}

void StageSearch::extend(std::size_t code, std::size_t next, std::size_t device, const TieCase& ties, double most) {
  const std::size_t to = code + unit_[device];
  const std::int64_t from_end = total_[to];
  if (static_cast<std::size_t>(from_end) > items_ || (stages_ > 0 && from_end > stages_)) return;
  std::size_t floor = reach_[to];
  if (!leave_out_ || stages_ > 0) floor = std::max(floor, static_cast<std::size_t>(most_stages() - from_end));
  const std::size_t ceiling = late_[codes_ - 1 - to];
  if (floor > ceiling) return;
  const std::size_t limits = (device * (classes_ + 1) + next) * (items_ + 1);
  for (std::size_t end = code == 0 ? items_ : floor + 1; end <= items_; ++end) {
    const double later = value_at(code, next, end);
    if (!(later < kInfinity) || ties.blocked[end] || later + least_before_[end] > most) continue;
    const double sum = later + costs_.send(device, next, end);
    const std::size_t plain = lowest(device, from_end, end, false);
    for (const bool recompute : {false, true}) {
      const std::size_t first = std::max({recompute ? lowest(device, from_end, end, true) : plain,
                                          busy_limit_[recompute][limits + end], ties.lowest[device][end], floor});
      const std::size_t past = std::min(recompute ? plain : end, ceiling + 1);
      const std::vector<double>& totals = charged_[recompute][device];
      if (first < past) relax(cell(to, device), first, past - 1, sum + totals[end], totals);
    }
  }
}

std::optional<std::vector<LayerStage>> StageSearch::cheapest(const TieCase& ties, double limit, double most) {
  find_busy_limits(limit);
  find_reach(limit);
  if (!leave_out_ && reach_[codes_ - 1] > 0) return std::nullopt;
  charge(ties);
  value_.assign(codes_ * classes_ * (items_ + 1), kInfinity);
  for (std::size_t code = 0; code < codes_; ++code) {
    for (std::size_t next = 0; next <= classes_; ++next) {
      if ((next == classes_) != (code == 0) || (next < classes_ && digit(code, next) == 0)) continue;
      for (std::size_t device = 0; device < classes_; ++device) {
        if (digit(code, device) < counts_[device]) extend(code, next, device, ties, most);
      }
    }
  }
  double best = kInfinity;
  std::size_t best_code = 0;
  std::size_t best_device = 0;
  for (std::size_t code = 1; code < codes_; ++code) {
    if (!is_last(code)) continue;
    for (std::size_t device = 0; device < classes_; ++device) {
      const double value = value_at(code, device, 0);
      if (!(value < best)) continue;
      best = value;
      best_code = code;
      best_device = device;
    }
  }
  if (!(best <= most) || best_code == 0) return std::nullopt;
  return found(best_code, best_device, ties);
}

std::vector<LayerStage> StageSearch::found(std::size_t code, std::size_t device, const TieCase& ties) const {
  std::vector<LayerStage> stages;
  std::size_t begin = 0;
  while (code > 0) {
    std::size_t next = classes_;
    const std::optional<LayerStage> stage = step(code, device, begin, ties, next);
    if (!stage) throw Error(ErrorKind::kInternal, "the stages of a pipeline cannot be recovered: please report it");
    stages.push_back(*stage);
    code -= unit_[device];
    begin = stage->end;
    device = next;
  }
  return stages;
}

// Finds the choice that gave a state its value: the same sums in the same order give the same bits.
std::optional<LayerStage> StageSearch::step(std::size_t code, std::size_t device, std::size_t begin,
                                            const TieCase& ties, std::size_t& next) const {
  const double value = value_at(code, device, begin);
  const std::size_t before = code - unit_[device];
  for (next = 0; next <= classes_; ++next) {
    const std::size_t limits = (device * (classes_ + 1) + next) * (items_ + 1);
    for (std::size_t end = begin + 1; end <= items_; ++end) {
      const double later = value_at(before, next, end);
      if (!(later < kInfinity) || ties.blocked[end] || begin < ties.lowest[device][end]) continue;
      const double sum = later + costs_.send(device, next, end);
      const std::size_t plain = lowest(device, total_[code], end, false);
      for (const bool recompute : {false, true}) {
        if (recompute ? begin >= plain || begin < lowest(device, total_[code], end, true) : begin < plain) continue;
        if (begin < busy_limit_[recompute][limits + end]) continue;
        const std::vector<double>& totals = charged_[recompute][device];
        if ((sum + totals[end]) - totals[begin] != value) continue;
        return LayerStage{begin, end, device, recompute};
      }
    }
  }
  return std::nullopt;
}

}  // namespace atl::plan
