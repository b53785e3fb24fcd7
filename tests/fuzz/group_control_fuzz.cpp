// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/fuzz/group_control_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::group_control(std::as_bytes(std::span(data, size)));
  return 0;
}
