// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/server.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/core/log.h"

namespace atl::redis {

namespace {

using std::chrono::milliseconds;

/// After this silence the server is tried over a new connection: the old one may lead nowhere.
constexpr milliseconds kSilence{10'000};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kMaxRetryPause{500};

/// Returns whether the server may soon answer the same command.
bool is_transient(const Reply& reply) {
  static constexpr std::string_view kStates[] = {"LOADING ", "BUSY ", "MASTERDOWN ", "TRYAGAIN "};
  return reply.kind == Reply::Kind::kError &&
         std::any_of(std::begin(kStates), std::end(kStates),
                     [&](std::string_view state) { return reply.text.starts_with(state); });
}

bool is_transient(const Error& error) {
  return error.kind() == ErrorKind::kPeerLost || error.kind() == ErrorKind::kTimeout;
}

}  // namespace

Server::Server(Url url, std::shared_ptr<const transport::Credentials> credentials)
    : url_(std::move(url)), credentials_(std::move(credentials)) {}

Reply Server::attempt_until(Deadline deadline, const Exchange& exchange) {
  bool has_warned = false;
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kMaxRetryPause)) {
    const Deadline soon = deadline.earlier(Deadline::after(kSilence));
    try {
      if (!connection_) {
        digests_.clear();
        connection_.emplace(url_, credentials_, soon);
      }
      Reply reply = exchange(*connection_, soon);
      if (!is_transient(reply)) return reply;
      throw Error(ErrorKind::kPeerLost, "it answered \"" + reply.text.substr(0, 200) + "\"");
    } catch (const Error& error) {
      connection_.reset();
      if (!is_transient(error)) throw;
      const std::string what = "the job's store, the Redis server at " + to_string(url_) + ", cannot be used: ";
      if (deadline.remaining(2 * kMaxRetryPause) <= pause) {
        throw Error(ErrorKind::kStore,
                    what + error.what() +
                        "; the call's deadline has passed. Is the server running there, and does a firewall let "
                        "its port through?");
      }
      if (!std::exchange(has_warned, true)) log(LogLevel::kWarning, what + error.what() + "; trying again");
    } catch (...) {
      connection_.reset();  // a late answer must not be taken for that of the next call
      throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

Reply Server::call(const std::vector<std::string>& arguments, Deadline deadline) {
  return attempt_until(deadline,
                       [&](Connection& connection, Deadline soon) { return connection.call(arguments, soon); });
}

Reply Server::evaluate(const char* script, const std::string& key, const std::vector<std::string>& arguments,
                       Deadline deadline) {
  std::vector<std::string> command{"EVALSHA", "", "1", key};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::size_t bytes = 0;
  for (const auto& argument : arguments) bytes += argument.size();
  if (bytes > kMaxReplyBytes) {
    throw Error(ErrorKind::kInvalidArgument, "a call to the job's store of " + std::to_string(bytes) +
                                                 " bytes is too large: at most " + std::to_string(kMaxReplyBytes) +
                                                 " bytes go into one");
  }
  return attempt_until(
      deadline, [&](Connection& connection, Deadline soon) { return run_script(connection, script, command, soon); });
}

Reply Server::run_script(Connection& connection, const char* script, std::vector<std::string>& command,
                         Deadline deadline) {
  for (;;) {
    auto& digest = digests_[script];
    const bool is_fresh = digest.empty();
    if (is_fresh) {
      const std::array load{std::string("SCRIPT"), std::string("LOAD"), std::string(script)};
      Reply loaded = connection.call(load, deadline);
      if (loaded.kind != Reply::Kind::kText) return loaded;
      digest = std::move(loaded.text);
    }
    command[1] = digest;
    Reply reply = connection.call(command, deadline);
    if (reply.kind != Reply::Kind::kError || !reply.text.starts_with("NOSCRIPT") || is_fresh) return reply;
    digest.clear();  // the server has dropped the script
  }
}

}  // namespace atl::redis
