// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/url.h"
#include "atoll/transport/stream/blocking_stream.h"

namespace atl::redis {

/// Loads what authenticates this client and the server to each other, once for all connections of a store. Null for
/// redis://.
std::shared_ptr<const transport::Credentials> credentials_of(const Url& url);

/// One connection to a Redis server, for one thread at a time. After an error it must not be used again.
class Connection {
 public:
  /// Connects, authenticates, and selects the database. Throws Error(kRefused) when the server does not accept this
  /// client or is not the one expected, kProtocol when it is not a Redis server, kPeerLost and kTimeout as
  /// BlockingStream.
  Connection(const Url& url, std::shared_ptr<const transport::Credentials> credentials, Deadline deadline);

  /// Sends one command and returns the server's answer, which may be an error reply.
  Reply call(std::span<const std::string> arguments, Deadline deadline);

 private:
  void log_in(const Url& url, Deadline deadline);

  transport::BlockingStream stream_;
  ReplyReader reader_;
};

/// A Redis server over one connection, which opens with the first call and again after it breaks. For one thread at a
/// time.
class Server {
 public:
  Server(Url url, std::shared_ptr<const transport::Credentials> credentials);

  /// Returns the answer to a command that may be repeated: after a lost connection the server may get it twice. Tries
  /// until the deadline, then throws Error(kStore); throws at once for what only the user can fix. The answer may be an
  /// error reply.
  Reply call(const std::vector<std::string>& arguments, Deadline deadline);

  /// Does the same for a script and its arguments; `key` is one that it uses.
  Reply evaluate(const char* script, const std::string& key, const std::vector<std::string>& arguments,
                 Deadline deadline);

  const Url& url() const noexcept { return url_; }

 private:
  using Exchange = std::function<Reply(Connection&, Deadline)>;
  Reply attempt_until(Deadline deadline, const Exchange& exchange);
  Reply run_script(Connection& connection, const char* script, std::vector<std::string>& command, Deadline deadline);

  Url url_;
  std::shared_ptr<const transport::Credentials> credentials_;
  std::optional<Connection> connection_;
  std::map<const char*, std::string> digests_;  // of the scripts that the server holds
};

}  // namespace atl::redis
