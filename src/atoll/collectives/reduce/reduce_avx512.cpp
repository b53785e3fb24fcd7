// SPDX-License-Identifier: Apache-2.0
#define ATOLL_SIMD_BYTES 64
#include "atoll/collectives/reduce/reduce_table.h"

namespace atl::collectives::detail {

const Kernels& avx512_kernels() noexcept {
  static constexpr Kernels kKernels = make_kernels();
  return kKernels;
}

}  // namespace atl::collectives::detail
