// SPDX-License-Identifier: Apache-2.0
// What a waiting rank reports about the others, from their messages; the times are made up.
#include "atoll/collectives/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "atoll/collectives/describe.h"
#include "tests/fuzz/roll_call_target.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

const Clock::time_point kStart = Clock::time_point(1000s);

RollCall of_rank(int rank, std::chrono::milliseconds slow_after = 20s, std::size_t size = 4) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < size; ++i) labels.push_back(std::to_string(i));
  return RollCall({rank, "world", labels, slow_after, [](int peer) { return "tcp to " + std::to_string(peer); }});
}

RankProgress away(int rank, std::chrono::milliseconds since) {
  return {rank, Stage::kAway, true, true, Operation::kAllReduce, sequence_of(811, 0), since, 0ms};
}

RankProgress at(int rank, Stage stage, std::chrono::milliseconds since = 0ms) {
  RankProgress where;
  where.rank = rank;
  where.stage = stage;
  where.since = since;
  return where;
}

struct Waiting {
  std::vector<int> peers;
  Stall stall() const { return {812, "all_reduce #812", peers, kStart, kStart}; }
};

TEST(RollCall, NamesWhoHasNotCome) {
  RollCall rolls = of_rank(0);
  const Waiting all{{1, 2, 3}};
  const auto now = kStart + 20s;
  rolls.record({false, 812, {at(1, Stage::kInside, 20s)}}, now);
  rolls.record({false, 812, {at(2, Stage::kInside, 21s)}}, now);
  rolls.record({false, 812, {away(3, 25s)}}, now);
  const auto line = rolls.report(all.stall(), now);
  ASSERT_TRUE(line);
  EXPECT_THAT(*line, HasSubstr("group \"world\" on rank 0: rank 3 has not entered all_reduce #812 for 21 s"));
  EXPECT_THAT(*line, HasSubstr("(its last was all_reduce #811, done 25 s ago)"));
  EXPECT_THAT(*line, HasSubstr("; ranks 0, 1, 2 have been waiting since "));
  EXPECT_THAT(*line, Not(HasSubstr("link")));
  EXPECT_THAT(rolls.explain(all.stall(), now), HasSubstr("rank 3 has not entered it for 21 s"));
}

TEST(RollCall, SaysThatALinkIsSlow) {
  RollCall rolls = of_rank(0);
  const Waiting one{{1}};
  const auto now = kStart + 30s;
  for (int rank = 1; rank < 4; ++rank) rolls.record({false, 812, {at(rank, Stage::kInside, 30s)}}, now);
  const auto line = rolls.report(one.stall(), now);
  ASSERT_TRUE(line);
  EXPECT_THAT(*line, HasSubstr("rank 1 has entered all_reduce #812 as well, but no data has moved for 30 s"));
  EXPECT_THAT(*line, HasSubstr("the link is slow or blocked (tcp to 1)"));
  EXPECT_THAT(*line, Not(HasSubstr("not entered")));
}

TEST(RollCall, SaysWhoDoesNotAnswer) {
  RollCall rolls = of_rank(0);
  const Waiting one{{1}};
  rolls.record({false, 812, {away(1, 1s)}}, kStart + 1s);
  EXPECT_THAT(rolls.explain(one.stall(), kStart + 2s), HasSubstr("rank 1 has not entered it"));
  EXPECT_THAT(rolls.explain(one.stall(), kStart + 20s), HasSubstr("rank 1 has not answered for "));
}

TEST(RollCall, TellsQueuedRanksAndMissingInputFromAbsence) {
  RollCall rolls = of_rank(0);
  const Waiting two{{1, 2}};
  const auto now = kStart + 20s;
  RankProgress queued = at(1, Stage::kQueued, 3s);
  queued.has_last = true;
  queued.last = Operation::kBroadcast;
  queued.last_sequence = sequence_of(810, 0);
  rolls.record({false, 812, {queued}}, now);
  rolls.record({false, 812, {at(2, Stage::kInput, 3s)}}, now);
  const auto line = rolls.report(two.stall(), now);
  ASSERT_TRUE(line);
  EXPECT_THAT(*line, HasSubstr("rank 1 has called all_reduce #812 but not started it (still in broadcast #810)"));
  EXPECT_THAT(*line, HasSubstr("rank 2 has called all_reduce #812 but not received the input"));
}

TEST(RollCall, ReportsWithGrowingPausesAndOnceWhenItIsOver) {
  RollCall rolls = of_rank(0);
  const Waiting one{{3}};
  std::vector<int> reported;
  for (int second = 1; second <= 200; ++second) {
    const auto now = kStart + std::chrono::seconds(second);
    rolls.record({false, 812, {away(3, 25s)}}, now);
    if (rolls.report(one.stall(), now)) reported.push_back(second);
  }
  EXPECT_EQ(reported, (std::vector<int>{20, 60, 180}));
  const auto line = rolls.finish(one.stall(), kStart + 200s);
  ASSERT_TRUE(line);
  EXPECT_THAT(*line, HasSubstr("rank 3 entered all_reduce #812 after 200 s"));
  EXPECT_FALSE(rolls.finish(one.stall(), kStart + 200s));
}

TEST(RollCall, IsSilentWhereNotWanted) {
  RollCall rolls = of_rank(0, 0ms);
  const Waiting one{{3}};
  EXPECT_FALSE(rolls.report(one.stall(), kStart + 1h));
  EXPECT_FALSE(rolls.finish(one.stall(), kStart + 1h));
}

TEST(RollCall, PassesOnWhatItHeard) {
  RollCall middle = of_rank(1);
  RollCall far = of_rank(0);
  const auto now = kStart + 20s;
  middle.record({false, 812, {away(3, 25s)}}, now - 1s);
  far.record(middle.message(812, at(1, Stage::kInside, 20s), false, now), now);
  EXPECT_THAT(far.explain(Waiting{{1}}.stall(), now), HasSubstr("rank 3 has not entered it"));
  // An older report of another rank does not replace a newer one, and no report about this rank itself counts.
  far.record({false, 812, {at(3, Stage::kInside), away(0, 1s)}}, now);
  far.record(middle.message(812, at(1, Stage::kInside, 20s), false, now), now);
  EXPECT_THAT(far.explain(Waiting{{1}}.stall(), now), Not(HasSubstr("not entered")));
}

TEST(RollCall, KeepsCollectivesApartAndForgetsOldOnes) {
  RollCall rolls = of_rank(0);
  const auto now = kStart + 20s;
  rolls.record({false, 812, {away(3, 1s)}}, now);
  for (std::uint64_t next = 813; next < 816; ++next) rolls.record({false, next, {away(2, 1s)}}, now);
  EXPECT_THAT(rolls.explain(Waiting{{1}}.stall(), now), HasSubstr("rank 3 has not entered"));
  rolls.record({false, 816, {}}, now);
  EXPECT_THAT(rolls.explain(Waiting{{1}}.stall(), now), Not(HasSubstr("rank 3")));
}

TEST(RollCall, MessagesOfLargeGroupsAreBoundedAndKeepWhoIsAway) {
  RollCall rolls = of_rank(0, 20s, 1000);
  for (int rank = 1; rank < 1000; ++rank)
    rolls.record({false, 812, {rank == 999 ? away(rank, 1s) : at(rank, Stage::kInside)}}, kStart);
  const auto message = rolls.message(812, at(0, Stage::kInside), true, kStart);
  EXPECT_EQ(message.ranks.size(), kMaxRollCallRanks);
  EXPECT_EQ(message.ranks[1].rank, 999);
  const auto bytes = encode(7, message);
  EXPECT_LT(bytes.size(), 4000u);
  const auto read = decode_roll_call(std::span(bytes).subspan(kGroupIdBytes + 1));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ranks[1].last_sequence, sequence_of(811, 0));
  EXPECT_EQ(read->ranks[1].since, 1s);
  EXPECT_TRUE(read->wants_reply);
}

TEST(RollCall, MutatedMessagesDoNoHarm) {
  auto whole = encode(7, RollCallMessage{true, 812, {away(1, 1s), at(2, Stage::kInside, 2s), at(3, Stage::kDone)}});
  whole.erase(whole.begin(), whole.begin() + kGroupIdBytes + 1);
  std::mt19937 random(8);
  for (int i = 0; i < 20000; ++i) {
    auto bytes = whole;
    for (int change = 0; change < 1 + i % 3; ++change) bytes[random() % bytes.size()] = std::byte(random() & 0xff);
    bytes.resize(random() % (bytes.size() + 1));
    fuzz::roll_call(bytes);
    bytes.push_back(std::byte(random() & 0xff));
    fuzz::roll_call(bytes);
  }
  fuzz::roll_call(whole);
}

}  // namespace
}  // namespace atl::test
