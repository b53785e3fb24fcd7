// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "tests/fuzz/redis_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::redis_url(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
