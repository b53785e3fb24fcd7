// SPDX-License-Identifier: Apache-2.0
#define ATOLL_SIMD_BYTES 64
#include "atoll/collectives/reduce/blocks_table.h"
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/collectives/reduce/reduce_table.h"

namespace atl::collectives::detail {

const KernelTable& avx512_kernels() noexcept {
  static constexpr KernelTable kTable = make_table();
  return kTable;
}

const BlockKernels& avx512_block_kernels() noexcept {
  static constexpr BlockKernels kTable = blocks::make_block_kernels();
  return kTable;
}

}  // namespace atl::collectives::detail
