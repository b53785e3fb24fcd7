// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/peers.h"
#include "tests/support/ranks.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

// Whatever the two directions take, the offset is within the bound.
TEST(ClockSamples, BoundTheOffset) {
  std::mt19937 random(5);
  std::uniform_int_distribution<std::int64_t> way(0, 3000);
  std::uniform_int_distribution<std::int64_t> offsets(-5'000'000, 5'000'000);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t truth = offsets(random);
    ClockSamples samples;
    std::int64_t now = 1'700'000'000'000'000;
    std::int64_t quickest = INT64_MAX;
    for (int exchange = 0; exchange < 8; ++exchange) {
      const auto there = way(random);
      const auto back = way(random);
      samples.add(now, now + there + truth, now + there + back);
      quickest = std::min(quickest, there + back);
      now += 20'000;
    }
    samples.keep_best();
    const auto list = samples.list();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_LE(std::abs(list[0].offset_us - truth), list[0].error_us);
    EXPECT_EQ(list[0].error_us, quickest / 2 + 1);
  }
}

TEST(ClockSamples, StayBoundedAndCoverTheWholeTime) {
  ClockSamples samples;
  for (std::int64_t i = 0; i < 10'000; ++i) {
    samples.add(1000 * i, 1000 * i, 1000 * i);
    samples.keep_best();
  }
  const auto list = samples.list();
  EXPECT_LE(list.size(), ClockSamples::kMax);
  EXPECT_GE(list.size(), ClockSamples::kMax / 2);
  EXPECT_EQ(list.front().at_us, 0);
  EXPECT_EQ(list.back().at_us, 9'999'000);
  EXPECT_GT(samples.halvings(), 0);
}

TEST(ClockSamples, IgnoreAClockThatWasSetBack) {
  ClockSamples samples;
  samples.add(2000, 5000, 1000);
  samples.keep_best();
  EXPECT_TRUE(samples.list().empty());
}

TEST(ClockSamples, OfAGroupAreInItsTrace) {
  const TemporaryFolder folder;
  RankOptions options;
  options.islands = layout("AB");
  options.trace_folder = folder.path("");
  Ranks ranks(options);
  ranks.run_ok([](Group& group) { group.barrier(); });
  const auto has_samples = [&] { return !nlohmann::json::parse(ranks.group(1).dump_json())["clock"].empty(); };
  wait_until("clock samples", has_samples);
  ranks.shut_down();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) {
    const auto json = nlohmann::json::parse(std::ifstream(entry.path()));
    EXPECT_EQ(json["operations"].size(), 1u);
    EXPECT_EQ(json["clock"].empty(), json["rank"] == 0);
    for (const auto& sample : json["clock"])  // of one process: the true offset is 0
      EXPECT_LE(std::abs(sample[1].get<std::int64_t>()), sample[2].get<std::int64_t>());
    ++files;
  }
  EXPECT_EQ(files, 2u);
}

}  // namespace
}  // namespace atl::test
