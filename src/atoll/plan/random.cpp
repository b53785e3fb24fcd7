// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/random.h"

#include <string>

#include "atoll/plan/text.h"

namespace atl::plan {

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
  const auto drawn = [&] { return static_cast<unsigned __int128>(next_long()) * bound; };
  unsigned __int128 product = drawn();
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = (0U - bound) % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = drawn();
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace atl::plan
