// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/group/rendezvous.h"

namespace atl::collectives {

/// The table that ranks pass through the store during a rendezvous.
struct MemberTable {
  std::map<int, Member> members;  ///< by rank
  std::vector<int> missing;       ///< ranks that did not join
  std::uint64_t group_id = 0;
  std::vector<std::byte> key;
};

/// Throws Error(kInvalidArgument) for a label that is too long.
std::vector<std::byte> encode(const MemberTable& table);

/// Decodes a table. For a member of another wire version only that version is known. Throws Error(kProtocol) for
/// invalid bytes; allocates at most a small multiple of their size.
MemberTable decode_table(std::span<const std::byte> bytes);

}  // namespace atl::collectives
