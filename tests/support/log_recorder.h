// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/core/log.h"

namespace atl::test {

/// Records the process's log lines during its lifetime; create it before the objects that log.
class LogRecorder : public LogSink {
 public:
  LogRecorder() { set_log_sink(this); }
  ~LogRecorder() override { set_log_sink(nullptr); }

  void write(LogLevel, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
    added_.notify_all();
  }

  /// Returns the number of lines in which the POSIX extended regular expression `pattern` is found.
  std::size_t count(const std::string& pattern) const {
    const std::lock_guard lock(mutex_);
    return count_locked(pattern);
  }

  /// Waits, as long as a busy machine may need, for `count` lines with `pattern`; returns whether they have come.
  bool wait_for(const std::string& pattern, std::size_t count = 1) const {
    std::unique_lock lock(mutex_);
    return added_.wait_for(lock, std::chrono::seconds(20), [&] { return count_locked(pattern) >= count; });
  }

  std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  std::size_t count_locked(const std::string& pattern) const {
    return static_cast<std::size_t>(
        std::count_if(lines_.begin(), lines_.end(), ::testing::Matches(::testing::ContainsRegex(pattern))));
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable added_;
  std::vector<std::string> lines_;
};

}  // namespace atl::test
