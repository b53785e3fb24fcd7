// SPDX-License-Identifier: Apache-2.0
#define ATOLL_SIMD_BYTES 16
#include "atoll/collectives/reduce/reduce_table.h"

namespace atl::collectives::detail {

const Kernels& plain_kernels() noexcept {
  static constexpr Kernels kKernels = make_kernels();
  return kKernels;
}

}  // namespace atl::collectives::detail
