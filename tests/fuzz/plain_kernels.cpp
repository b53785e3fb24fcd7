// SPDX-License-Identifier: Apache-2.0
// The kernels for vector units, in builds without their sources.
#include "atoll/collectives/reduce/reduce_kernels.h"

namespace atl::collectives::detail {

const Kernels& avx2_kernels() noexcept { return plain_kernels(); }
const Kernels& avx512_kernels() noexcept { return plain_kernels(); }

}  // namespace atl::collectives::detail
