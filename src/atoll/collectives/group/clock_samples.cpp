// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/clock_samples.h"

namespace atl::collectives {

void ClockSamples::add(std::int64_t asked_us, std::int64_t answered_us, std::int64_t heard_us) {
  if (heard_us < asked_us) return;  // the clock was set back in the meantime
  // One more microsecond, because both clocks are read in whole microseconds.
  const ClockSample sample{heard_us, answered_us - (asked_us + (heard_us - asked_us) / 2),
                           (heard_us - asked_us) / 2 + 1};
  if (!best_ || sample.error_us <= best_->error_us) best_ = sample;
}

void ClockSamples::keep_best() {
  if (!best_) return;
  if (kept_.size() == kMax) {
    for (std::size_t i = 0; i < kMax / 2; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(kMax / 2);
    ++halvings_;
  }
  kept_.push_back(*best_);
  best_.reset();
}

std::vector<ClockSample> ClockSamples::list() const {
  auto all = kept_;
  if (best_) all.push_back(*best_);
  return all;
}

}  // namespace atl::collectives
