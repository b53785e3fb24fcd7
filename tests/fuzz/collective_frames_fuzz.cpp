// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/collective_frames_target.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::collective_frames(std::as_bytes(std::span(data, size)));
  return 0;
}
