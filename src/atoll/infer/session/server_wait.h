// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <mutex>

#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// Predicts how long a session's next inference will wait for a turn on its server, from the load that the server
/// reports and the waits of the last inferences. Each call passes the time, in seconds of any monotonic clock. Any
/// thread.
class ServerWait {
 public:
  void told(double now, const wire::Load& load);
  /// An inference has waited for `seconds`. Counts for 1 / e after two seconds, and not at all after ten: otherwise a
  /// session that stopped using the server because of a wait would never return to it.
  void waited(double now, double seconds);
  /// Forgets everything: from now on it is another server.
  void forget();
  /// plan::expected_wait(); 0 if the server has reported no load for ten seconds.
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
