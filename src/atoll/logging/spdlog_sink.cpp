// SPDX-License-Identifier: Apache-2.0
#include "atoll/logging/spdlog_sink.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "atoll/core/error.h"
#include "atoll/core/log.h"

namespace atl::logging {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

spdlog::level::level_enum level_from_environment() {
  const char* const value = std::getenv("ATOLL_LOG_LEVEL");
  const std::string_view name = value == nullptr ? "warning" : value;
  if (name == "debug") return spdlog::level::debug;
  if (name == "info") return spdlog::level::info;
  if (name == "warning") return spdlog::level::warn;
  if (name == "error") return spdlog::level::err;
  if (name == "off") return spdlog::level::off;
  throw Error(ErrorKind::kInvalidArgument,
              "ATOLL_LOG_LEVEL is \"" + std::string(name) + "\"; it may be debug, info, warning, error or off");
}

class SpdlogSink final : public LogSink {
 public:
  SpdlogSink() : logger_("atoll", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%n %P] [%l] %v");
    logger_.flush_on(spdlog::level::debug);
  }

  bool is_of_this_process() const noexcept { return ::getpid() == process_; }

  void set_level(spdlog::level::level_enum level) { logger_.set_level(level); }

  // The text is data, never a format. A forked child may have inherited the sink's lock from a thread that does not exist
  // there.
  void write(LogLevel level, std::string_view message) override {
    if (!logger_.should_log(to_spdlog(level))) return;
    if (!is_of_this_process()) return write_line(level, message);
    logger_.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
  }

 private:
  const pid_t process_ = ::getpid();
  spdlog::logger logger_;
};

}  // namespace

void install_spdlog_sink() {
  const auto level = level_from_environment();
  ::tzset();  // reads the time zone's file now: the server's workers cannot open it later
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static SpdlogSink* sink = nullptr;
  // Never destroyed: loop threads may log until the process ends. A forked child gets a sink of its own.
  if (sink == nullptr || !sink->is_of_this_process()) sink = new SpdlogSink;
  sink->set_level(level);
  set_log_sink(sink);
}

}  // namespace atl::logging
