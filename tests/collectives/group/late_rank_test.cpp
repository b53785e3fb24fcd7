// SPDX-License-Identifier: Apache-2.0
// A rank that waits for a late rank reports it, and reports its arrival; the late one does nothing for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "tests/collectives/group/calls.h"
#include "tests/support/log_recorder.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using namespace std::chrono_literals;
using ::testing::HasSubstr;

RankOptions with(const std::string& letters, transport::TransportChoice transport, std::chrono::milliseconds slow) {
  RankOptions options;
  options.islands = layout(letters);
  options.transport = transport;
  options.slow_after = slow;
  return options;
}

struct LateCase {
  const char* letters;
  int late;
  transport::TransportChoice transport;
};

class LateRank : public ::testing::TestWithParam<LateCase> {};

// The late rank's thread is blocked all the time: its loop replies.
TEST_P(LateRank, IsNamedOnAllOthersAndSoIsItsArrival) {
  const LogRecorder lines;
  Ranks ranks(with(GetParam().letters, GetParam().transport, 400ms));
  const int late = GetParam().late;
  const auto others = static_cast<std::size_t>(ranks.size()) - 1;
  std::latch enough(1);
  std::thread opener([&] {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (rank == late) continue;
      const std::string line = "on rank " + std::to_string(rank) + ": rank " + std::to_string(late) +
                               " has not entered all_reduce #1 .*its last was all_reduce #0, done";
      EXPECT_TRUE(lines.wait_for(line)) << line << "\n" << lines.text();
    }
    enough.count_down();
  });
  ranks.run_ok([&](Group& group) {
    std::vector<float> data(1000, 1.0f);
    group.run(all_reduce(data));
    if (group.rank() == late) enough.wait();
    group.run(all_reduce(data));
    EXPECT_EQ(data[999], static_cast<float>(ranks.size() * ranks.size()));
  });
  opener.join();
  const std::string arrival = ": rank " + std::to_string(late) + " entered all_reduce #1 .* after ";
  EXPECT_EQ(lines.count(arrival), others) << lines.text();
  EXPECT_EQ(lines.count("link is slow"), 0u) << lines.text();
}

INSTANTIATE_TEST_SUITE_P(Layouts, LateRank,
                         ::testing::Values(LateCase{"AAA", 2, transport::TransportChoice::kShm},
                                           LateCase{"AB", 0, transport::TransportChoice::kTcp},
                                           LateCase{"ABAB", 3, transport::TransportChoice::kTcp},
                                           LateCase{"AAAAAABB", 5, transport::TransportChoice::kShm}),
                         [](const auto& layout) { return std::string(layout.param.letters); });

TEST(LateRanks, TheTimeoutSaysWhoDidNotEnter) {
  Ranks ranks(with("ABA", transport::TransportChoice::kAuto, 0ms));
  std::latch over(2);
  const auto errors = ranks.run([&](Group& group) {
    std::vector<float> data(10, 1.0f);
    group.run(all_reduce(data));
    if (group.rank() == 2) return over.wait();
    Call call = all_reduce(data);
    call.timeout = 2s;
    try {
      group.run(call);
    } catch (...) {
      over.count_down();
      throw;
    }
  });
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("rank 2 has not entered it for"));
}

TEST(LateRanks, ARankThatIsBusyWithAnEarlierOperationIsNotAbsent) {
  const LogRecorder lines;
  Ranks ranks(with("AB", transport::TransportChoice::kAuto, 400ms));
  std::atomic<bool> is_here{false};
  std::thread opener([&] {
    EXPECT_TRUE(lines.wait_for("on rank 0: rank 1 has called all_reduce #0 .* but not received the input"))
        << lines.text();
    EXPECT_TRUE(lines.wait_for("on rank 1: all_reduce #0 .* has waited for its input from the device")) << lines.text();
    is_here = true;
  });
  ranks.run_ok([&](Group& group) {
    std::vector<float> data(10, 1.0f);
    Call call = all_reduce(data);
    if (group.rank() == 1) call.progress = loaded_once([&] { return is_here.load(); });
    group.run(call);
  });
  opener.join();
  EXPECT_EQ(lines.count("not entered"), 0u) << lines.text();
}

TEST(LateRanks, QuickCollectivesSayNothing) {
  const LogRecorder lines;
  Ranks ranks(with("ABA", transport::TransportChoice::kAuto, 2s));
  ranks.run_ok([&](Group& group) {
    std::vector<float> data(10, 1.0f);
    for (int i = 0; i < 200; ++i) group.run(all_reduce(data));
  });
  EXPECT_EQ(lines.count("all_reduce"), 0u) << lines.text();
}

}  // namespace
}  // namespace atl::test
