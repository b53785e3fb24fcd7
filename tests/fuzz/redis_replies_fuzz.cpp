// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <span>

#include "tests/fuzz/redis_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::redis_replies({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
