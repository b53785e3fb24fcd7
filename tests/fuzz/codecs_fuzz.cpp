// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/fuzz/wire_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::codecs(std::as_bytes(std::span(data, size)));
  return 0;
}
