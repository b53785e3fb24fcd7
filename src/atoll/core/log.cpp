// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/log.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace atl {
namespace {

std::atomic<LogSink*> installed{nullptr};

iovec part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

}  // namespace

void write_line(LogLevel level, std::string_view message) noexcept {
  const std::array<iovec, 3> parts{part(level == LogLevel::kError     ? "atoll error: "
                                        : level == LogLevel::kWarning ? "atoll warning: "
                                                                      : "atoll: "),
                                   part(message), part("\n")};
  // There is nowhere to report that standard error is closed.
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size()));
}

void set_log_sink(LogSink* sink) noexcept { installed.store(sink, std::memory_order_release); }

void log(LogLevel level, std::string_view message) noexcept {
  LogSink* const sink = installed.load(std::memory_order_acquire);
  if (sink == nullptr) {
    if (level >= LogLevel::kWarning) write_line(level, message);
    return;
  }
  try {
    sink->write(level, message);
  } catch (...) {
    write_line(LogLevel::kError, message);
  }
}

}  // namespace atl
