// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "atoll/core/error.h"
#include "tests/fuzz/rendezvous_target.h"
#include "tests/support/memory_store.h"

namespace atl::collectives {
namespace {

using Bytes = std::vector<std::byte>;

Member member(int rank) {
  Member mine;
  mine.wire_version = kWireVersion;
  mine.size = 3;
  mine.attempt = 7;
  mine.tls = rank == 1;
  mine.island = "island";
  mine.device = "cuda";
  mine.library = "nccl";
  mine.problem = rank == 2 ? "no device" : "";
  mine.uplink = 0.5;
  mine.address.host = "host";
  mine.address.tcp = {"10.0.0.1:4711"};
  mine.address.name = "rank " + std::to_string(rank);
  return mine;
}

MemberTable example() {
  MemberTable table;
  for (int rank = 0; rank < 3; ++rank) table.members[rank] = member(rank);
  table.missing = {5, 9};
  table.group_id = 0x0123456789abcdef;
  table.key.assign(32, std::byte{3});
  return table;
}

std::string error_of(const Bytes& bytes) {
  try {
    decode_table(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << error.what();
    return error.what();
  }
  return "";
}

TEST(RendezvousTable, IsReadAsItWasWritten) {
  const MemberTable table = decode_table(encode(example()));
  ASSERT_EQ(table.members.size(), 3U);
  for (const auto& [rank, found] : table.members) {
    EXPECT_EQ(found.address.encode(), member(rank).address.encode());
    EXPECT_EQ(found.tls, rank == 1);
    EXPECT_EQ(found.problem, rank == 2 ? "no device" : "");
    EXPECT_EQ(found.attempt, 7U);
    EXPECT_EQ(found.uplink, 0.5);
  }
  EXPECT_EQ(table.missing, (std::vector<int>{5, 9}));
  EXPECT_EQ(table.group_id, example().group_id);
  EXPECT_EQ(table.key, example().key);
}

TEST(RendezvousTable, EveryShorterOneIsAnError) {
  const Bytes whole = encode(example());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(error_of(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes))), "") << bytes;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_NE(error_of(longer).find("too many"), std::string::npos);
}

TEST(RendezvousTable, OfAnotherVersionOnlyTheVersionIsKnown) {
  MemberTable table = example();
  table.members[1].wire_version = kWireVersion + 1;
  EXPECT_EQ(decode_table(encode(table)).members.at(1).wire_version, kWireVersion + 1);
}

TEST(RendezvousTable, StatedSizesTakeNoMemory) {
  const Bytes whole = encode(MemberTable{});
  for (std::size_t at = 4; at + 4 <= whole.size(); ++at) {
    Bytes large = whole;
    std::fill_n(large.begin() + static_cast<std::ptrdiff_t>(at), 4, std::byte{0xff});
    error_of(large);  // with 2^32 - 1 entries, or bytes
  }
}

TEST(RendezvousTable, ALabelThatIsTooLongIsTheCallersError) {
  MemberTable table = example();
  table.members[0].island.assign(5000, 'x');
  EXPECT_THROW(encode(table), Error);
}

TEST(RendezvousTable, MutatedOnesAreErrorsOrTables) {
  std::mt19937 random(20240607);
  const Bytes whole = encode(example());
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = whole;
    for (std::uint32_t change = 0; change <= random() % 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    bytes.resize(bytes.size() - random() % 20);
    fuzz::rendezvous(bytes);
  }
}

TEST(RendezvousTable, GarbageInTheStoreIsAnErrorOfTheStore) {
  for (const int rank : {0, 1}) {
    MemoryStore store;
    store.set(rank == 0 ? "group/up/1" : "group/table", Bytes(50, std::byte{0x7f}));
    Member mine = member(rank);
    mine.size = 2;
    try {
      rendezvous(store, "group/", rank, mine, std::chrono::seconds(5));
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kStore) << error.what();
      EXPECT_NE(std::string(error.what()).find("does not parse"), std::string::npos) << error.what();
    }
  }
}

TEST(RendezvousTable, ATableWithoutAMemberIsAnErrorOfTheStore) {
  MemoryStore store;
  MemberTable table = example();
  table.missing.clear();
  table.members.erase(0);
  store.set("group/table", encode(table));
  try {
    rendezvous(store, "group/", 1, member(1), std::chrono::seconds(5));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStore) << error.what();
    EXPECT_NE(std::string(error.what()).find("lacks rank 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace atl::collectives
