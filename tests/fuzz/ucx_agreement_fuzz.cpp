// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/ucx_agreement_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  atl::fuzz::ucx_agreement(std::as_bytes(std::span(data, size)));
  return 0;
}
