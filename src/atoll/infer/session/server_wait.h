// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <mutex>

#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// How long a session's next inference will wait for a turn on its server, from what the server tells of the others and what
/// the last inferences have waited. Seconds of any clock that does not go back come with each call. Any thread.
class ServerWait {
 public:
  void told(double now, const wire::Load& load);
  /// An inference has waited for so long. Counts for 1 / e after two seconds, and not at all after ten: or a session that went
  /// away because of it would never come back.
  void waited(double now, double seconds);
  /// It is another server from now on.
  void forget();
  /// plan::expected_wait(); 0 where nothing was told for ten seconds.
  double expected(double now) const;

 private:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();
  mutable std::mutex mutex_;
  wire::Load load_;
  double told_at_ = kNever;
  double waited_at_ = kNever;
  double waited_ = 0;  // sums, weighted by age at waited_at_
  double inferences_ = 0;
};

}  // namespace atl::infer
