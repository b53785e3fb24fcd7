// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace atl::collectives {

/// How far another process's wall clock is ahead of this one's: the true offset is within `offset_us` ± `error_us`.
struct ClockSample {
  std::int64_t at_us = 0;  ///< by this clock
  std::int64_t offset_us = 0;
  std::int64_t error_us = 0;
};

/// Estimates of another process's clock over a whole run, in bounded memory. Each exchange of times bounds the offset
/// by half of its round trip, and of a series of exchanges the quickest one is kept. When there are kMax samples, every
/// other one is dropped, so that the remaining ones are twice as far apart.
class ClockSamples {
 public:
  static constexpr std::size_t kMax = 64;

  /// Adds an exchange: requested at `asked_us` and received at `heard_us` by this clock, answered at `answered_us` by
  /// the other.
  void add(std::int64_t asked_us, std::int64_t answered_us, std::int64_t heard_us) {
    if (heard_us < asked_us) return;  // the clock was set back in the meantime
    // One more microsecond, because both clocks are read in whole microseconds.
    const ClockSample sample{heard_us, answered_us - (asked_us + (heard_us - asked_us) / 2),
                             (heard_us - asked_us) / 2 + 1};
    if (!best_ || sample.error_us <= best_->error_us) best_ = sample;
  }

  /// Ends a series of exchanges.
  void keep_best() {
    if (!best_) return;
    if (kept_.size() == kMax) {
      for (std::size_t i = 0; i < kMax / 2; ++i) kept_[i] = kept_[2 * i];
      kept_.resize(kMax / 2);
      ++halvings_;
    }
    kept_.push_back(*best_);
    best_.reset();
  }

  /// Oldest first; the best of an unfinished series is the last one.
  std::vector<ClockSample> list() const {
    auto all = kept_;
    if (best_) all.push_back(*best_);
    return all;
  }

  /// Returns how often the samples have been halved so far.
  int halvings() const noexcept { return halvings_; }

 private:
  std::vector<ClockSample> kept_;
  std::optional<ClockSample> best_;
  int halvings_ = 0;
};

}  // namespace atl::collectives
