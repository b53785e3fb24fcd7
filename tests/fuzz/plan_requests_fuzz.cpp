// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/plan_requests_target.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::plan_requests(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
