// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/trace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {

Trace::Trace(double bin_seconds, std::vector<double> up, std::vector<double> down) : bin_seconds_(bin_seconds) {
  if (!(std::isfinite(bin_seconds) && bin_seconds > 0)) {
    refuse("the bins of a trace last " + number(bin_seconds) + " s: give a length above 0");
  }
  if (up.empty()) refuse("a trace has no bins: give at least one rate");
  if (!down.empty() && down.size() != up.size()) {
    refuse("a trace has " + counted(up.size(), "bin") + " up and " + std::to_string(down.size()) +
           " down: give equal numbers");
  }
  up_ = way_of(std::move(up));
  if (!down.empty()) down_ = way_of(std::move(down));
}

Trace::Way Trace::way_of(std::vector<double> rates) const {
  std::vector<double> sums{0};
  for (std::size_t i = 0; i < rates.size(); ++i) {
    require_amount("the rate of bin " + std::to_string(i) + " of a trace", rates[i]);
    sums.push_back(sums.back() + rates[i] * bin_seconds_);
  }
  return {std::move(rates), std::move(sums)};
}

double Trace::bytes_until(const Way& way, double time) const {
  const auto last = static_cast<double>(way.rates.size() - 1);
  const double bin = std::clamp(std::floor(time / bin_seconds_), 0.0, last);
  const auto index = static_cast<std::size_t>(bin);
  return way.sums[index] + way.rates[index] * std::clamp(time - bin * bin_seconds_, 0.0, bin_seconds_);
}

double Trace::bytes(Lane way, double begin, double end) const {
  const Way& rates = of(way);
  const double turns_before = std::floor(begin / seconds());
  const double turns = std::floor(end / seconds());
  return (turns - turns_before) * rates.sums.back() + bytes_until(rates, end - turns * seconds()) -
         bytes_until(rates, begin - turns_before * seconds());
}

double Trace::end(Lane way, double begin, double bytes) const {
  if (bytes <= 0) return begin;
  const Way& rates = of(way);
  const double total = rates.sums.back();
  if (total == 0) return kInfinity;
  double turns = std::floor(begin / seconds());
  double left = bytes_until(rates, begin - turns * seconds()) + bytes;
  const double more = std::ceil(left / total) - 1;  // so that something is left for the last pass
  turns += more;
  left = std::clamp(left - more * total, 0.0, total);
  const auto found = std::lower_bound(rates.sums.begin() + 1, rates.sums.end(), left);
  const auto bin = static_cast<std::size_t>(found - rates.sums.begin()) - 1;
  if (rates.rates[bin] == 0) return begin;  // nothing is left but rounding
  const double within = (left - rates.sums[bin]) / rates.rates[bin];
  return std::max(begin, turns * seconds() + static_cast<double>(bin) * bin_seconds_ + within);
}

double Trace::rate_before(Lane way, double time) const {
  const std::vector<double>& all = rates(way);
  // A time that is a whole number of bins except for rounding counts as one.
  const auto over = static_cast<std::uint64_t>(std::floor(time / bin_seconds_ + 1e-9));
  return all[static_cast<std::size_t>((over + all.size() - 1) % all.size())];
}

Channel Trace::channel(double begin, double latency, bool is_half_duplex) const {
  require_amount("the time at which an inference begins", begin);
  require_amount("the link's latency", latency);
  return {[this, begin](Lane way, double from, double count) { return end(way, begin + from, count) - begin; }, latency,
          is_half_duplex};
}

}  // namespace atl::plan
