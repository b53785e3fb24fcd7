// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/random.h"

#include <string>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

struct Product {
  std::uint64_t high;
  std::uint64_t low;
};

// Multiplies 64 by 64 bits in plain C++.
Product multiply(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a_low = a & UINT32_MAX;
  const std::uint64_t a_high = a >> 32;
  const std::uint64_t b_low = b & UINT32_MAX;
  const std::uint64_t b_high = b >> 32;
  const std::uint64_t low = a_low * b_low;
  const std::uint64_t middle = a_high * b_low + (low >> 32);
  const std::uint64_t other = a_low * b_high + (middle & UINT32_MAX);
  return {a_high * b_high + (middle >> 32) + (other >> 32), other << 32 | (low & UINT32_MAX)};
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

Random::Random(std::uint64_t seed, std::int64_t epoch, Purpose purpose)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {
  if (epoch < 0 || epoch >> 56 != 0) refuse("the epoch is " + std::to_string(epoch) + ": give one from 0 to 2^56 - 1");
  counter_ = {0, 0, static_cast<std::uint32_t>(epoch),
              static_cast<std::uint32_t>(epoch >> 32) | static_cast<std::uint32_t>(purpose) << 24};
}

void Random::refill() noexcept {
  block_ = philox(counter_, key_);
  if (++counter_[0] == 0) ++counter_[1];
  used_ = 0;
}

std::uint64_t Random::below_long(std::uint64_t bound) {
  Product product = multiply(next_long(), bound);
  if (product.low < bound) {
    const std::uint64_t threshold = (0U - bound) % bound;
    while (product.low < threshold) product = multiply(next_long(), bound);
  }
  return product.high;
}

}  // namespace atl::plan
