// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/blocks_kernels.h"
#include "atoll/collectives/reduce/blocks_table.h"

namespace atl::collectives::detail {

const BlockKernels& avx2_block_kernels() noexcept {
  static constexpr BlockKernels kTable = make_block_kernels();
  return kTable;
}

}  // namespace atl::collectives::detail
