// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "atoll/collectives/reduce/reduce_kernels.h"

namespace atl::collectives {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Returns the instruction sets that this machine has.
inline std::vector<Simd> simds() {
  std::vector<Simd> all{Simd::kPlain};
  if (detail::machine_simd() >= Simd::kAvx2) all.push_back(Simd::kAvx2);
  if (detail::machine_simd() >= Simd::kAvx512) all.push_back(Simd::kAvx512);
  return all;
}

}  // namespace atl::collectives
