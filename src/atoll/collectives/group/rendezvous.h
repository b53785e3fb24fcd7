// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/store.h"
#include "atoll/transport/endpoint.h"

namespace atl::collectives {

/// The properties that each rank contributes. The fields up to `check_values` must be equal on all ranks.
struct Member {
  std::uint32_t wire_version = 0;
  std::uint32_t size = 0;
  std::uint32_t attempt = 0;
  bool key_from_file = false;
  bool tls = false;
  bool flat_reduce = false;
  bool check_data = false;
  std::uint8_t check_values = 0;  ///< a ValueCheck
  std::string island;
  std::string device = "cpu";  ///< type of the device this rank computes on; equal on the ranks of an island
  std::string library;         ///< the library that reduces inside the island; equal likewise; "": Atoll does
  std::string problem;         ///< why this rank cannot take part; the rendezvous then fails on all ranks
  double uplink = 0;
  transport::PeerAddress address;
};

/// The result of a rendezvous: equal on all ranks.
struct RendezvousResult {
  std::uint64_t group_id = 0;
  std::vector<std::byte> key;   ///< random, from rank 0; empty when the key comes from a file
  std::vector<Member> members;  ///< by rank
};

inline constexpr std::uint32_t kWireVersion = 10;

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

/// Collects one Member from each of `size` ranks through the store: entries are gathered up a binomial tree and the
/// whole table is read back, so a rank makes at most log2(size) + 2 round trips. Keys are "<prefix>up/<rank>" and
/// "<prefix>table". Throws Error(kTimeout) naming the missing ranks (on every rank that came), Error(kMismatch) naming
/// the ranks that disagree and about what, or Error(kUnavailable) with the problem of a rank that has one.
RendezvousResult rendezvous(Store& store, const std::string& prefix, int rank, const Member& mine,
                            std::chrono::nanoseconds timeout);

}  // namespace atl::collectives
