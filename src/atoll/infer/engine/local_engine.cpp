// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/engine/local_engine.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "atoll/core/deadline.h"

namespace atl::infer {

double measured_seconds(LocalEngine& engine, std::span<const Value> inputs) {
  constexpr int kRuns = 3;
  engine.run(inputs);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    const Clock::time_point begin = Clock::now();
    engine.run(inputs);
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

}  // namespace atl::infer
