// SPDX-License-Identifier: Apache-2.0
#define ATOLL_SIMD_BYTES 32
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/collectives/reduce/reduce_table.h"

namespace atl::collectives::detail {

const KernelTable& avx2_kernels() noexcept {
  static constexpr KernelTable kTable = make_table();
  return kTable;
}

}  // namespace atl::collectives::detail
