// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/fuzz/roll_call_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::roll_call(std::as_bytes(std::span(data, size)));
  return 0;
}
