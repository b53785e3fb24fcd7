// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/server.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/log.h"

namespace atl::redis {

namespace {

using std::chrono::milliseconds;

/// After this silence the server is tried over a new connection: the old one may lead nowhere.
constexpr milliseconds kSilence{10'000};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kMaxRetryPause{500};
constexpr std::size_t kReceiveBytes = std::size_t{16} << 10;

/// Adds the advice for a user who mixed up redis:// and rediss://, or left out a certificate.
Error with_hint(const Url& url, const Error& error) {
  const bool speaks_another_protocol = error.kind() == ErrorKind::kProtocol;
  std::string hint;
  if (url.tls && (speaks_another_protocol || error.kind() == ErrorKind::kTimeout)) {
    hint = " (if this server has no TLS, write redis://)";
  } else if (speaks_another_protocol) {
    hint = " (if this server requires TLS, write rediss://)";
  } else if (error.kind() == ErrorKind::kRefused && url.tls) {
    hint =
        " (ca= or ATOLL_REDIS_CA names the authorities of its certificate; cert= and key=, or ATOLL_REDIS_CERT and "
        "ATOLL_REDIS_KEY, name this client's certificate)";
  }
  return {error.kind(), error.what() + hint};
}

transport::BlockingStream open(const Url& url, std::shared_ptr<const transport::Credentials> credentials,
                               Deadline deadline) {
  try {
    return {url.place, std::move(credentials), deadline};
  } catch (const Error& error) {
    throw with_hint(url, error);
  }
}

[[noreturn]] void refuse_login(const Url& url, const std::string& answer) {
  if (answer.starts_with("NOAUTH")) {
    throw Error(ErrorKind::kRefused, "the Redis server at " + to_string(url) +
                                         " requires a password: name a file that holds it in "
                                         "ATOLL_REDIS_PASSWORD_FILE, or write redis://:PASSWORD@HOST");
  }
  if (answer.starts_with("WRONGPASS") || answer.find("AUTH") != std::string::npos) {
    throw Error(ErrorKind::kRefused, "the Redis server at " + to_string(url) + " does not accept the password" +
                                         (url.user.empty() ? "" : " of the user \"" + url.user + "\"") +
                                         ": it answered \"" + answer.substr(0, 200) + "\"");
  }
  throw Error(answer.starts_with("LOADING") ? ErrorKind::kPeerLost : ErrorKind::kRefused, "the Redis server at ",
              to_string(url), " refuses this client: it answered \"", answer.substr(0, 200), "\"");
}

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

std::shared_ptr<const transport::Credentials> credentials_of(const Url& url) {
  if (!url.tls) return nullptr;
  if (url.certificate_file.empty()) return transport::Credentials::of_authorities(url.authorities_file);
  if (url.authorities_file.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "rediss:// with a certificate of this client also needs ca= or ATOLL_REDIS_CA, the authorities of the "
                "server's certificate");
  }
  return transport::Credentials::of_certificates(url.certificate_file, url.key_file, url.authorities_file);
}

Connection::Connection(const Url& url, std::shared_ptr<const transport::Credentials> credentials, Deadline deadline)
    : stream_(open(url, std::move(credentials), deadline)) {
  try {
    log_in(url, deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPeerLost || url.tls) throw with_hint(url, error);
    throw Error(error.kind(),
                std::string(error.what()) + " before its first answer (if it requires TLS, write rediss://)");
  }
}

void Connection::log_in(const Url& url, Deadline deadline) {
  if (!url.password.empty()) {
    std::vector<std::string> command{"AUTH"};
    if (!url.user.empty()) command.push_back(url.user);
    command.push_back(url.password);
    if (const Reply reply = call(command, deadline); reply.kind == Reply::Kind::kError) refuse_login(url, reply.text);
  }
  // Sent for the default database too: the answer shows that this is a Redis server and that it accepts this client.
  const std::array select{std::string("SELECT"), std::to_string(url.database)};
  const Reply reply = call(select, deadline);
  if (reply.kind != Reply::Kind::kError) return;
  if (reply.text.find("DB index") != std::string::npos) {
    throw Error(ErrorKind::kInvalidArgument, "the Redis server at ", to_string(url), " has no database ", url.database,
                ": its configuration sets their number");
  }
  refuse_login(url, reply.text);
}

Reply Connection::call(std::span<const std::string> arguments, Deadline deadline) {
  stream_.send(as_byte_span(format_command(arguments)), deadline);
  std::array<std::byte, kReceiveBytes> buffer;
  for (;;) {
    if (auto reply = reader_.next()) {
      if (reader_.next()) throw Error(ErrorKind::kProtocol, stream_.name() + " sent a reply to no command");
      return std::move(*reply);
    }
    const std::size_t count = stream_.receive(buffer, deadline);
    reader_.feed(std::span(buffer).first(count));
  }
}

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
        throw Error(ErrorKind::kStore, what, error.what(),
                    "; the call's deadline has passed. Is the server running there, and does a firewall let its port "
                    "through?");
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
    throw Error(ErrorKind::kInvalidArgument, "a call to the job's store of ", bytes, " bytes is too large: at most ",
                kMaxReplyBytes, " bytes go into one");
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
