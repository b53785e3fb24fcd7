// SPDX-License-Identifier: Apache-2.0
// The kernels for vector units, in builds without their sources.
#include "atoll/collectives/reduce/blocks_kernels.h"
#include "atoll/collectives/reduce/reduce_kernels.h"

namespace atl::collectives::detail {

const KernelTable& avx2_kernels() noexcept { return plain_kernels(); }
const KernelTable& avx512_kernels() noexcept { return plain_kernels(); }
const BlockKernels& avx2_block_kernels() noexcept { return plain_block_kernels(); }
const BlockKernels& avx512_block_kernels() noexcept { return plain_block_kernels(); }

}  // namespace atl::collectives::detail
