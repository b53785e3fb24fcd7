// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/rendezvous.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "atoll/core/error.h"
#include "atoll/transport/auth.h"

namespace atl::collectives {
namespace {

using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;

// The table travels as CBOR: self-describing, bounded by its own length, parsed by a library.
Bytes pack(const Json& json) {
  const auto cbor = Json::to_cbor(json);
  Bytes bytes(cbor.size());
  std::transform(cbor.begin(), cbor.end(), bytes.begin(), [](std::uint8_t b) { return std::byte{b}; });
  return bytes;
}

Json unpack(const Bytes& bytes, const std::string& key) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  Json json = Json::from_cbor(begin, begin + bytes.size(), true, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Error(ErrorKind::kStore, "the store's value of \"" + key + "\" does not parse");
  return json;
}

Json::binary_t to_binary(const Bytes& bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return Json::binary_t(std::vector<std::uint8_t>(begin, begin + bytes.size()));
}

Bytes from_binary(const Json& json) {
  const auto& binary = json.get_binary();
  const auto* begin = reinterpret_cast<const std::byte*>(binary.data());
  return Bytes(begin, begin + binary.size());
}

Json to_json(const Member& member) {
  return {{"wire", member.wire_version},
          {"size", member.size},
          {"attempt", member.attempt},
          {"key_file", member.key_from_file},
          {"flat", member.flat_reduce},
          {"island", member.island},
          {"device", member.device},
          {"library", member.library},
          {"problem", member.problem},
          {"uplink", member.uplink},
          {"address", to_binary(member.address.encode())}};
}

Member member_from(const Json& json) {
  Member member;
  member.wire_version = json.at("wire");
  member.size = json.at("size");
  member.attempt = json.at("attempt");
  member.key_from_file = json.at("key_file");
  member.flat_reduce = json.at("flat");
  member.island = json.at("island");
  member.device = json.at("device");
  member.library = json.at("library");
  member.problem = json.at("problem");
  member.uplink = json.at("uplink");
  // What another version wrote cannot be read; that the versions differ is said where all are compared.
  if (member.wire_version == kWireVersion) {
    member.address = transport::PeerAddress::decode(from_binary(json.at("address")));
  }
  return member;
}

Bytes random_bytes(std::size_t count) {
  Bytes bytes(count);
  transport::fill_random(bytes);
  return bytes;
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

void require_equal(const std::vector<Member>& members, const std::string& what, auto field) {
  for (std::size_t r = 1; r < members.size(); ++r) {
    if (field(members[r]) == field(members[0])) continue;
    throw Error(ErrorKind::kMismatch, "rank 0 and rank " + std::to_string(r) + " disagree about " + what + ": " +
                                          std::to_string(field(members[0])) + " and " +
                                          std::to_string(field(members[r])) +
                                          "; start all ranks with the same setting");
  }
}

// What rank `a` and rank `b` of one island say of themselves must be the same.
void require_same(const std::string& island, std::size_t a, const std::string& of_a, std::size_t b,
                  const std::string& of_b, const std::string& remedy) {
  if (of_a == of_b) return;
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(a) + " (" + of_a + ") and rank " + std::to_string(b) +
                                        " (" + of_b + ") are both in island \"" + island + "\": " + remedy);
}

std::string named(const std::string& library) { return library.empty() ? "no library" : "library " + library; }

// One library works on one kind of memory: the ranks of an island must state the same.
void require_like_islands(const std::vector<Member>& members) {
  std::map<std::string, std::size_t> first;
  for (std::size_t r = 0; r < members.size(); ++r) {
    const std::size_t other = first.try_emplace(members[r].island, r).first->second;
    require_same(
        members[r].island, other, "on " + members[other].device, r, "on " + members[r].device,
        "ranks on unlike devices need islands of their own (ATOLL_ISLAND, or atoll run --island), or ATOLL_DEVICE=cpu "
        "where a rank is to compute on the CPU");
    require_same(members[r].island, other, named(members[other].library), r, named(members[r].library),
                 "start them with the same ATOLL_INNER and the same vendor modules");
  }
}

// The entries of the subtree below this rank; what never came is listed in `missing`.
Json gather(Store& store, const std::string& prefix, int rank, int size, Json mine, std::chrono::nanoseconds timeout) {
  Json held = {{"members", {{std::to_string(rank), std::move(mine)}}}, {"missing", Json::array()}};
  const auto grace = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(250), timeout / 20);
  auto deadline = Deadline::after(timeout * 4 / 5);
  for (int mask = 1; mask < size; mask <<= 1) {
    if (rank & mask) {
      store.set(prefix + "up/" + std::to_string(rank), pack(held));
      return held;
    }
    if (rank + mask >= size) continue;
    const std::string key = prefix + "up/" + std::to_string(rank + mask);
    try {
      Json below = unpack(store.get(key, deadline), key);
      held["members"].update(below.at("members"));
      for (const auto& absent : below.at("missing")) held["missing"].push_back(absent);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
      held["missing"].push_back(rank +
                                mask);  // its subtree is silent with it: only the root of it is known to be absent
    }
    deadline = Deadline::at(deadline.when() + grace);  // a parent waits a little longer than its children did
  }
  return held;
}

}  // namespace

Meeting meet(Store& store, const std::string& prefix, int rank, const Member& mine, std::chrono::nanoseconds timeout) {
  const int size = static_cast<int>(mine.size);
  Json table = gather(store, prefix, rank, size, to_json(mine), timeout);
  if (rank == 0) {
    table["group_id"] = to_binary(random_bytes(sizeof(std::uint64_t)));
    table["key"] = to_binary(mine.key_from_file ? Bytes{} : random_bytes(32));
    store.set(prefix + "table", pack(table));
  } else {
    try {
      table = unpack(store.get(prefix + "table", Deadline::after(timeout)), prefix + "table");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
      throw Error(ErrorKind::kTimeout,
                  "rank " + std::to_string(rank) + " waited for rank 0 to join the group of " + std::to_string(size) +
                      " ranks; it did not come. Is it running, and do all ranks use the same store?");
    }
  }
  if (const auto missing = table.at("missing").get<std::vector<int>>(); !missing.empty()) {
    throw Error(ErrorKind::kTimeout, list_ranks(missing) + " did not join the group of " + std::to_string(size) +
                                         " ranks in time. Are they running, and do all ranks use the same store?");
  }
  Meeting meeting;
  const Bytes id = from_binary(table.at("group_id"));
  std::copy_n(id.begin(), sizeof meeting.group_id, reinterpret_cast<std::byte*>(&meeting.group_id));
  meeting.key = from_binary(table.at("key"));
  for (int r = 0; r < size; ++r) meeting.members.push_back(member_from(table.at("members").at(std::to_string(r))));
  for (std::size_t r = 0; r < meeting.members.size(); ++r) {
    if (meeting.members[r].problem.empty()) continue;
    throw Error(ErrorKind::kUnavailable,
                "rank " + std::to_string(r) + " cannot take part: " + meeting.members[r].problem);
  }
  require_equal(meeting.members, "the wire version", [](const Member& m) { return m.wire_version; });
  require_equal(meeting.members, "the group's size", [](const Member& m) { return m.size; });
  require_equal(meeting.members, "the restart attempt", [](const Member& m) { return m.attempt; });
  require_equal(meeting.members, "ATOLL_REDUCE=flat (1: set)", [](const Member& m) { return m.flat_reduce ? 1 : 0; });
  require_equal(meeting.members, "ATOLL_KEY_FILE (1: set)", [](const Member& m) { return m.key_from_file ? 1 : 0; });
  require_like_islands(meeting.members);
  return meeting;
}

}  // namespace atl::collectives
