// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/redis_answers_target.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::redis_answers(std::as_bytes(std::span(data, size)));
  return 0;
}
