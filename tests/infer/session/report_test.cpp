// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace atl::infer {
namespace {

TEST(Report, EachDirectionHasItsRate) {
  const RobotTimes times = robot_times(10, 4, 1000, 500, {1000, 100, 0.01, false});
  EXPECT_DOUBLE_EQ(times.computing, 6);
  EXPECT_DOUBLE_EQ(times.waiting, 4);
  EXPECT_DOUBLE_EQ(times.sending, 1);
  EXPECT_DOUBLE_EQ(times.receiving, 5);
  EXPECT_DOUBLE_EQ(joules_of({10, 2, 0.5}, times), 10 * 6 + 2 * 4 + 0.5 * 6);
}

TEST(Report, NothingTakesLongerThanTheInference) {
  const RobotTimes times = robot_times(2, 7, 1000, 1000, {1, 1, 0, false});
  EXPECT_EQ(times.computing, 0);
  EXPECT_EQ(times.waiting, 2);
  EXPECT_EQ(times.sending, 2);
  EXPECT_EQ(times.receiving, 2);
  const RobotTimes local = robot_times(2, 0, 0, 0, {});
  EXPECT_EQ(local.computing, 2);
  EXPECT_EQ(local.sending + local.receiving, 0);
}

TEST(Report, TimesAddUp) {
  Statistics statistics;
  InferenceRecord record;
  record.times = {1, 2, 3, 4};
  statistics.add(record);
  statistics.add(record);
  SessionReport report;
  statistics.fill(report);
  const auto json = nlohmann::json::parse(report.json())["robot_seconds"];
  EXPECT_EQ(json["computing"], 2);
  EXPECT_EQ(json["waiting"], 4);
  EXPECT_EQ(json["sending"], 6);
  EXPECT_EQ(json["receiving"], 8);
}

}  // namespace
}  // namespace atl::infer
