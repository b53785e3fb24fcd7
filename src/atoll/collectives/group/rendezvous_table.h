// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "atoll/collectives/group/rendezvous.h"

namespace atl::collectives {

/// What ranks pass on through the store on their way to a Meeting, as bytes.
struct MeetingTable {
  std::map<int, Member> members;  ///< by rank
  std::vector<int> missing;       ///< ranks that did not come
  std::uint64_t group_id = 0;
  std::vector<std::byte> key;
};

/// Throws Error(kInvalidArgument) for a label that is too long.
std::vector<std::byte> encode(const MeetingTable& table);

/// The reverse. Of a member of another wire version only that version is known. Throws Error(kProtocol) for
/// bytes that do not parse; allocates no more than a small multiple of them.
MeetingTable decode_table(std::span<const std::byte> bytes);

}  // namespace atl::collectives
