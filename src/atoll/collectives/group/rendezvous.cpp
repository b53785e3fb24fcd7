// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/rendezvous.h"

#include <algorithm>

#include "atoll/core/error.h"
#include "atoll/transport/auth.h"

namespace atl::collectives {
namespace {

using Bytes = std::vector<std::byte>;

MemberTable read(Store& store, const std::string& key, Deadline deadline) {
  const Bytes bytes = store.get(key, deadline);
  try {
    return decode_table(bytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::kStore, "the store's value of \"" + key + "\" does not parse: " + error.what() +
                                       ". Do all ranks run one version of Atoll?");
  }
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

template <typename Value>
void require_equal(const std::vector<Member>& members, const std::string& what, Value Member::*field,
                   const std::string& remedy = "start all ranks with the same setting") {
  for (std::size_t r = 1; r < members.size(); ++r) {
    if (members[r].*field == members[0].*field) continue;
    std::string text = "rank 0 and rank " + std::to_string(r) + " disagree about " + what + ": ";
    text.append(std::to_string(members[0].*field)).append(" and ").append(std::to_string(members[r].*field));
    throw Error(ErrorKind::kMismatch, text.append("; ").append(remedy));
  }
}

// Rank `a` and rank `b`, of one island, must state the same.
void require_same(const std::string& island, std::size_t a, const std::string& of_a, std::size_t b,
                  const std::string& of_b, const std::string& remedy) {
  if (of_a == of_b) return;
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(a) + " (" + of_a + ") and rank " + std::to_string(b) +
                                        " (" + of_b + ") are both in island \"" + island + "\": " + remedy);
}

std::string named(const std::string& library) { return library.empty() ? "no library" : "library " + library; }

// A library works on one kind of memory, so the ranks of an island must state the same device type.
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

// Returns the entries of the subtree below this rank; absent ranks are listed in `missing`.
MemberTable gather(Store& store, const std::string& prefix, int rank, int size, const Member& mine,
                   std::chrono::nanoseconds timeout) {
  MemberTable held;
  held.members[rank] = mine;
  const auto grace = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(250), timeout / 20);
  auto deadline = Deadline::after(timeout * 4 / 5);
  for (int mask = 1; mask < size; mask <<= 1) {
    if (rank & mask) {
      store.set(prefix + "up/" + std::to_string(rank), encode(held));
      return held;
    }
    if (rank + mask >= size) continue;
    try {
      MemberTable below = read(store, prefix + "up/" + std::to_string(rank + mask), deadline);
      held.members.merge(below.members);
      held.missing.insert(held.missing.end(), below.missing.begin(), below.missing.end());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
      held.missing.push_back(rank + mask);  // its subtree is cut off too, but only its root is known to be absent
    }
    deadline = Deadline::at(deadline.when() + grace);  // a parent waits a little longer than its children did
  }
  return held;
}

// Checked before ranks are reported missing: a rank that expects a larger group would wait for ranks that do not exist.
void require_equal_sizes(const std::map<int, Member>& members) {
  const std::pair<const int, Member>* first = nullptr;
  for (const auto& each : members) {
    const auto& [rank, member] = each;
    if (member.wire_version != kWireVersion) continue;  // reported when all members are compared
    if (!first) first = &each;
    if (member.size == first->second.size) continue;
    std::string text = "rank " + std::to_string(first->first) + " and rank " + std::to_string(rank);
    text.append(" disagree about the group's size: ").append(std::to_string(first->second.size));
    text.append(" and ").append(std::to_string(member.size));
    throw Error(ErrorKind::kMismatch, text.append("; start all with one WORLD_SIZE"));
  }
}

// Returns the members in rank order. Throws an error that names the missing ranks, if any.
std::vector<Member> all_members(MemberTable& table, int size) {
  require_equal_sizes(table.members);
  if (!table.missing.empty()) {
    throw Error(ErrorKind::kTimeout, list_ranks(table.missing) + " did not join the group of " + std::to_string(size) +
                                         " ranks in time. Are they running, and do all ranks use the same store?");
  }
  std::vector<Member> members;
  for (int rank = 0; rank < size; ++rank) {
    const auto found = table.members.find(rank);
    if (found == table.members.end()) {
      throw Error(ErrorKind::kStore, "the store's table of a group of " + std::to_string(size) + " ranks lacks rank " +
                                         std::to_string(rank));
    }
    members.push_back(std::move(found->second));
  }
  return members;
}

void require_agreement(const std::vector<Member>& members) {
  require_equal(members, "the wire version", &Member::wire_version,
                "install the same version of Atoll on all hosts (atoll --version)");
  require_equal(members, "the restart attempt", &Member::attempt);
  require_equal(members, "ATOLL_REDUCE=flat (1: set)", &Member::flat_reduce);
  require_equal(members, "ATOLL_CHECK_DATA (1: set)", &Member::check_data);
  require_equal(members, "ATOLL_CHECK_VALUES (0: unset, 1: warn, 2: raise)", &Member::check_values);
  require_equal(members, "ATOLL_KEY_FILE (1: set)", &Member::key_from_file);
  require_equal(members, "ATOLL_TLS (1: set)", &Member::tls);
  require_like_islands(members);
}

}  // namespace

RendezvousResult rendezvous(Store& store, const std::string& prefix, int rank, const Member& mine,
                            std::chrono::nanoseconds timeout) {
  const int size = static_cast<int>(mine.size);
  MemberTable table = gather(store, prefix, rank, size, mine, timeout);
  if (rank == 0) {
    transport::fill_random(std::as_writable_bytes(std::span(&table.group_id, 1)));
    if (!mine.key_from_file) {
      table.key.resize(32);
      transport::fill_random(table.key);
    }
    store.set(prefix + "table", encode(table));
  } else {
    try {
      table = read(store, prefix + "table", Deadline::after(timeout));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
      throw Error(ErrorKind::kTimeout,
                  "rank " + std::to_string(rank) + " waited for rank 0 to join the group of " + std::to_string(size) +
                      " ranks; it did not join in time. Is it running, and do all ranks use the same store?");
    }
  }
  RendezvousResult result{table.group_id, table.key, all_members(table, size)};
  for (std::size_t r = 0; r < result.members.size(); ++r) {
    if (result.members[r].problem.empty()) continue;
    throw Error(ErrorKind::kUnavailable,
                "rank " + std::to_string(r) + " cannot take part: " + result.members[r].problem);
  }
  require_agreement(result.members);
  return result;
}

}  // namespace atl::collectives
