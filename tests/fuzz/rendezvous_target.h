// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <span>

#include "atoll/collectives/group/rendezvous.h"
#include "atoll/core/error.h"

namespace atl::fuzz {

/// A table of members as read from the job's store. A table that parses is unchanged when it is written and read again.
inline void rendezvous(std::span<const std::byte> bytes) {
  try {
    const auto table = collectives::decode_table(bytes);
    const auto again = collectives::encode(table);
    const auto second = collectives::decode_table(again);
    if (collectives::encode(second) != again) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
  }
}

}  // namespace atl::fuzz
