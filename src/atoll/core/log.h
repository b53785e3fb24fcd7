// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace atl {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Receives log lines. Core declares it; spdlog implements it outside core.
class LogSink {
 public:
  virtual ~LogSink() = default;
  /// Called from any thread, never under a lock of Atoll's own.
  virtual void write(LogLevel level, std::string_view message) = 0;
};

/// Installs `sink` for the process (nullptr: lines of kWarning and above go to standard error). The sink must outlive
/// every user; installing is not synchronised with running operations, so do it at start-up.
void set_log_sink(LogSink* sink) noexcept;

void log(LogLevel level, std::string_view message) noexcept;

/// Writes "atoll warning: message" to standard error in one system call, so that lines of several threads and processes
/// do not mix. Takes no lock, and may be called in a forked child.
void write_line(LogLevel level, std::string_view message) noexcept;

}  // namespace atl
