// SPDX-License-Identifier: Apache-2.0
// How ranks find each other through the store: what it costs, and which ranks are named if one is absent or disagrees.
#include "atoll/collectives/group/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <functional>
#include <set>
#include <thread>

#include "tests/support/memory_store.h"

namespace atl::collectives {
namespace {

using std::chrono::milliseconds;

// Counts the round trips of one rank.
class CountingStore final : public Store {
 public:
  explicit CountingStore(MemoryStore& shared) : shared_(shared) {}
  void set(const std::string& key, const std::vector<std::byte>& value) override {
    ++trips;
    shared_.set(key, value);
  }
  std::vector<std::byte> get(const std::string& key, Deadline deadline) override {
    ++trips;
    return shared_.get(key, deadline);
  }
  int trips = 0;

 private:
  MemoryStore& shared_;
};

Member member(int rank, int size) {
  Member mine;
  mine.wire_version = kWireVersion;
  mine.size = static_cast<std::uint32_t>(size);
  mine.island = rank % 2 == 0 ? "A" : "B";
  mine.uplink = rank;
  mine.address.id.bytes[0] = static_cast<std::uint8_t>(rank);
  mine.address.host = "host";
  mine.address.unix_name = "name" + std::to_string(rank);
  mine.address.name = "rank " + std::to_string(rank);
  return mine;
}

struct Outcome {
  RendezvousResult result;
  int trips = 0;
  std::string error;
  std::optional<ErrorKind> kind;
};

// `absent` ranks do not join; `change` edits a rank's entry.
std::vector<Outcome> meet_all(int size, milliseconds timeout, const std::set<int>& absent = {},
                              const std::function<void(int, Member&)>& change = {}) {
  MemoryStore shared;
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (absent.count(rank) > 0) continue;
    ranks.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      CountingStore store(shared);
      Member mine = member(rank, size);
      if (change) change(rank, mine);
      try {
        outcome.result = rendezvous(store, "group/", rank, mine, timeout);
      } catch (const Error& error) {
        outcome.error = error.what();
        outcome.kind = error.kind();
      }
      outcome.trips = store.trips;
    });
  }
  for (auto& rank : ranks) rank.join();
  return outcomes;
}

class Meet : public ::testing::TestWithParam<int> {};

// Proves S-10.
TEST_P(Meet, TakesLogarithmicallyManyRoundTrips) {
  const int size = GetParam();
  const int levels = std::bit_width(static_cast<unsigned>(size - 1));  // ceil(log2(size))
  for (const Outcome& outcome : meet_all(size, milliseconds(30000))) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_LE(outcome.trips, levels + 2);
  }
}

TEST_P(Meet, GivesEveryRankTheSameTable) {
  const int size = GetParam();
  const auto outcomes = meet_all(size, milliseconds(30000));
  const RendezvousResult& first = outcomes[0].result;
  EXPECT_EQ(first.key.size(), 32U);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.result.group_id, first.group_id);
    EXPECT_EQ(outcome.result.key, first.key);
    ASSERT_EQ(outcome.result.members.size(), static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const Member& found = outcome.result.members[static_cast<std::size_t>(rank)];
      EXPECT_EQ(found.address.encode(), member(rank, size).address.encode());
      EXPECT_EQ(found.island, rank % 2 == 0 ? "A" : "B");
      EXPECT_EQ(found.uplink, rank);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Meet, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64, 100));

TEST(Rendezvous, TwoGroupsHaveDifferentNumbersAndKeys) {
  const auto one = meet_all(2, milliseconds(30000));
  const auto other = meet_all(2, milliseconds(30000));
  EXPECT_NE(one[0].result.group_id, other[0].result.group_id);
  EXPECT_NE(one[0].result.key, other[0].result.key);
}

TEST(Rendezvous, KeyFromAFileIsNotReplaced) {
  const auto outcomes = meet_all(3, milliseconds(30000), {}, [](int, Member& mine) { mine.key_from_file = true; });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_TRUE(outcome.result.key.empty());
  }
}

class Absent : public ::testing::TestWithParam<int> {};

// Proves C-7.
TEST_P(Absent, IsNamedOnEveryRankThatCameWithinTheTimeout) {
  constexpr int kSize = 7;
  const milliseconds timeout(3000);
  const auto started = Clock::now();
  const auto outcomes = meet_all(kSize, timeout, {GetParam()});
  EXPECT_LT(Clock::now() - started, timeout + milliseconds(3000));
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == GetParam()) continue;
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.kind, ErrorKind::kTimeout);
    EXPECT_NE(outcome.error.find("rank " + std::to_string(GetParam()) + " "), std::string::npos)
        << "rank " << rank << " said: " << outcome.error;
  }
}

INSTANTIATE_TEST_SUITE_P(EachRank, Absent, ::testing::Range(0, 7));

TEST(Rendezvous, SeveralAbsentRanksAreNamed) {
  const auto outcomes = meet_all(8, milliseconds(3000), {3, 5, 6});
  for (const int rank : {0, 1, 2, 4, 7}) {
    const std::string& error = outcomes[static_cast<std::size_t>(rank)].error;
    for (const char* absent : {"3", "5", "6"})
      EXPECT_NE(error.find(absent), std::string::npos) << "rank " << rank << " said: " << error;
  }
}

TEST(Rendezvous, AProblemOfOneRankIsToldToAll) {
  const auto outcomes = meet_all(4, milliseconds(30000), {}, [](int rank, Member& mine) {
    if (rank == 2) mine.problem = "it has no device \"npu\"";
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kUnavailable);
    EXPECT_EQ(outcome.error, "rank 2 cannot take part: it has no device \"npu\"");
  }
}

struct Difference {
  const char* name;
  std::function<void(Member&)> apply;
  const char* named;
};

class Disagreement : public ::testing::TestWithParam<Difference> {};

TEST_P(Disagreement, IsNamedOnEveryRank) {
  const auto outcomes = meet_all(5, milliseconds(30000), {}, [](int rank, Member& mine) {
    if (rank == 3) GetParam().apply(mine);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.error;
    EXPECT_NE(outcome.error.find("rank 3"), std::string::npos) << outcome.error;
    EXPECT_NE(outcome.error.find(GetParam().named), std::string::npos) << outcome.error;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fields, Disagreement,
    ::testing::Values(
        Difference{"WireVersion", [](Member& mine) { mine.wire_version += 1; }, "wire version"},
        Difference{"Attempt", [](Member& mine) { mine.attempt = 9; }, "attempt"},
        Difference{"FlatReduce", [](Member& mine) { mine.flat_reduce = true; }, "ATOLL_REDUCE"},
        Difference{"Tls", [](Member& mine) { mine.tls = true; }, "ATOLL_TLS"},
        Difference{"Size", [](Member& mine) { mine.size = 9; }, "size"},
        Difference{"CheckData", [](Member& mine) { mine.check_data = true; }, "ATOLL_CHECK_DATA"},
        Difference{"CheckValues", [](Member& mine) { mine.check_values = 2; }, "ATOLL_CHECK_VALUES"},
        Difference{"KeyFile", [](Member& mine) { mine.key_from_file = true; }, "ATOLL_KEY_FILE"},
        Difference{"Device", [](Member& mine) { mine.device = "sim"; }, "(on sim) are both in island \"B\""},
        Difference{"Library", [](Member& mine) { mine.library = "gloo"; }, "(no library) and rank 3 (library gloo)"}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace atl::collectives
