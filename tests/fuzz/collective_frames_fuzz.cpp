// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/collective_frames_target.h"

#include <cstdint>

#include "atoll/collectives/reduce/reduce_kernels.h"

// clang lacks built-ins of the others.
namespace atl::collectives::detail {
const Kernels& avx2_kernels() noexcept { return plain_kernels(); }
const Kernels& avx512_kernels() noexcept { return plain_kernels(); }
}  // namespace atl::collectives::detail

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::collective_frames(std::as_bytes(std::span(data, size)));
  return 0;
}
