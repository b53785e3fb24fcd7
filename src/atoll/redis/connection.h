// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

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

}  // namespace atl::redis
