// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

namespace atl::sim {

/// How long a simulated device takes. A device of speed 1 is slow enough for one core of a current server processor to keep
/// up with: 10 Gflop/s, 5 GB/s of memory traffic and 5 us for each operator.
struct Model {
  double speed = 0;             ///< relative to the above; 0: operators take no modelled time
  double copy_bytes_per_s = 0;  ///< between host and device, per direction; 0: copies take no modelled time

  /// Of one operator that computes `flops` and touches `bytes` of memory: the larger of the two times, plus the fixed part.
  std::chrono::nanoseconds operator_time(double flops, double bytes) const noexcept;
  std::chrono::nanoseconds copy_time(std::size_t bytes) const noexcept;
};

}  // namespace atl::sim
