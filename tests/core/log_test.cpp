// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/log.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace atl {
namespace {

class Recorder : public LogSink {
 public:
  void write(LogLevel level, std::string_view message) override { lines.emplace_back(level, message); }
  std::vector<std::pair<LogLevel, std::string>> lines;
};

class Thrower : public LogSink {
 public:
  void write(LogLevel, std::string_view) override { throw std::runtime_error("the sink is broken"); }
};

class Log : public testing::Test {
 protected:
  ~Log() override { set_log_sink(nullptr); }
};

TEST_F(Log, GoesToTheInstalledSink) {
  Recorder recorder;
  set_log_sink(&recorder);
  log(LogLevel::kDebug, "one");
  log(LogLevel::kError, "two");
  const std::vector<std::pair<LogLevel, std::string>> expected{{LogLevel::kDebug, "one"}, {LogLevel::kError, "two"}};
  EXPECT_EQ(recorder.lines, expected);
}

TEST_F(Log, WithoutASinkWarningsAndErrorsGoToStandardError) {
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "not this");
  log(LogLevel::kWarning, "a warning");
  log(LogLevel::kError, "an error");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "atoll warning: a warning\natoll error: an error\n");
}

TEST_F(Log, ASinkThatThrowsLosesNoLine) {
  Thrower thrower;
  set_log_sink(&thrower);
  testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "kept");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "atoll error: kept\n");
}

}  // namespace
}  // namespace atl
