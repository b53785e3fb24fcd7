// SPDX-License-Identifier: Apache-2.0
#include "atoll/logging/spdlog_sink.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "atoll/core/error.h"
#include "atoll/core/log.h"

namespace atl::logging {
namespace {

class SpdlogSink : public testing::Test {
 protected:
  ~SpdlogSink() override {
    set_log_sink(nullptr);
    ::unsetenv("ATOLL_LOG_LEVEL");
  }

  /// Logs one line of each level and returns what reaches standard error.
  static std::string lines_at(const char* level) {
    ::setenv("ATOLL_LOG_LEVEL", level, 1);
    return lines();
  }

  static std::string lines() {
    testing::internal::CaptureStderr();
    install_spdlog_sink();
    log(LogLevel::kDebug, "line-d {}");
    log(LogLevel::kInfo, "line-i {}");
    log(LogLevel::kWarning, "line-w {}");
    log(LogLevel::kError, "line-e {}");
    return testing::internal::GetCapturedStderr();
  }

  static std::string kept(const std::string& lines) {
    std::string letters;
    for (const char letter : {'d', 'i', 'w', 'e'}) {
      if (lines.find(std::string("line-") + letter + " {}\n") != std::string::npos) letters += letter;
    }
    return letters;
  }
};

TEST_F(SpdlogSink, KeepsTheLevelOfTheEnvironment) {
  EXPECT_EQ(kept(lines()), "we");
  EXPECT_EQ(kept(lines_at("debug")), "diwe");
  EXPECT_EQ(kept(lines_at("info")), "iwe");
  EXPECT_EQ(kept(lines_at("warning")), "we");
  EXPECT_EQ(kept(lines_at("error")), "e");
  EXPECT_EQ(lines_at("off"), "");
}

TEST_F(SpdlogSink, LinesNameTheProcessAndTheLevel) {
  const std::string text = lines_at("error");
  EXPECT_NE(text.find("[atoll " + std::to_string(::getpid()) + "] [error] line-e {}\n"), std::string::npos) << text;
}

TEST_F(SpdlogSink, AnUnknownLevelIsNamed) {
  ::setenv("ATOLL_LOG_LEVEL", "loud", 1);
  try {
    install_spdlog_sink();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("loud"), std::string::npos);
  }
}

}  // namespace
}  // namespace atl::logging
