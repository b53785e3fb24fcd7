// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/connection.h"

#include <array>
#include <utility>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl::redis {

namespace {

constexpr std::size_t kReceiveBytes = std::size_t{16} << 10;

/// Adds the advice for a user who mixed up redis:// and rediss://, or left out a certificate.
Error with_hint(const Url& url, const Error& error) {
  const bool speaks_another_protocol = error.kind() == ErrorKind::kProtocol;
  if (url.tls && (speaks_another_protocol || error.kind() == ErrorKind::kTimeout)) {
    return {error.kind(), std::string(error.what()) + " (if this server has no TLS, write redis://)"};
  }
  if (speaks_another_protocol) {
    return {error.kind(), std::string(error.what()) + " (if this server requires TLS, write rediss://)"};
  }
  if (error.kind() == ErrorKind::kRefused && url.tls) {
    return {error.kind(), std::string(error.what()) +
                              " (ca= or ATOLL_REDIS_CA names the authorities of its certificate; cert= and key=, or "
                              "ATOLL_REDIS_CERT and ATOLL_REDIS_KEY, name this client's certificate)"};
  }
  return error;
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
  throw Error(
      answer.starts_with("LOADING") ? ErrorKind::kPeerLost : ErrorKind::kRefused,
      "the Redis server at " + to_string(url) + " refuses this client: it answered \"" + answer.substr(0, 200) + "\"");
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
    throw Error(ErrorKind::kInvalidArgument, "the Redis server at " + to_string(url) + " has no database " +
                                                 std::to_string(url.database) +
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

}  // namespace atl::redis
