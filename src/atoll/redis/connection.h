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

/// What a server has to be shown before it talks; made once for all connections of a store. Null for redis://.
std::shared_ptr<const transport::Credentials> credentials_of(const Url& url);

/// One connection to a Redis server, for one thread at a time. After an error it is of no use.
class Connection {
 public:
  /// Connects, shows the password, selects the database. Error(kRefused) where the server does not accept this side or
  /// is not whom it should be, kProtocol where it is no Redis server, kPeerLost and kTimeout as BlockingStream.
  Connection(const Url& url, std::shared_ptr<const transport::Credentials> credentials, Deadline deadline);

  /// The server's answer to one command. An error that the server answers is a reply, too.
  Reply call(std::span<const std::string> arguments, Deadline deadline);

 private:
  void log_in(const Url& url, Deadline deadline);

  transport::BlockingStream stream_;
  ReplyReader reader_;
};

}  // namespace atl::redis
