// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/checksum.h"

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace atl::collectives {
namespace {

std::uint64_t not_zero(std::uint64_t sum) { return sum == 0 ? 1 : sum; }

}  // namespace

Checksum::Checksum() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  begin();
}

Checksum::~Checksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Checksum::begin() noexcept { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }

void Checksum::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const noexcept {
  return not_zero(XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  return not_zero(XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace atl::collectives
