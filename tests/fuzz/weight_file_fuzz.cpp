// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/fuzz/weight_file_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::weight_file({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
