// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace atl::collectives {

/// How far another process's wall clock was ahead of this one's: the truth is within `offset_us` ± `error_us`.
struct ClockSample {
  std::int64_t at_us = 0;  ///< by this clock
  std::int64_t offset_us = 0;
  std::int64_t error_us = 0;
};

/// What exchanges of times with another process say about its clock, over a whole run in bounded memory. Each exchange bounds the offset by half
/// of its round trip; of those that follow each other closely the quickest one is kept. When there are too many, every other one is dropped, so
/// that those that remain lie twice as far apart.
class ClockSamples {
 public:
  static constexpr std::size_t kMax = 64;

  /// Asked at `asked_us` and heard at `heard_us` by this clock, answered at `answered_us` by the other one.
  void add(std::int64_t asked_us, std::int64_t answered_us, std::int64_t heard_us);

  /// Ends a series of exchanges.
  void keep_best();

  /// Oldest first; the best of an unfinished series is the last one.
  std::vector<ClockSample> list() const;

  /// How often samples have been halved so far.
  int halvings() const noexcept { return halvings_; }

 private:
  std::vector<ClockSample> kept_;
  std::optional<ClockSample> best_;
  int halvings_ = 0;
};

}  // namespace atl::collectives
