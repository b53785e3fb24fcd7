// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/connection.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/url.h"

namespace atl::redis {

/// A Redis server over one connection, which is made with the first call and made anew when it breaks. For one thread at
/// a time.
class Server {
 public:
  Server(Url url, std::shared_ptr<const transport::Credentials> credentials);

  /// The answer to a command that may be repeated: after a lost connection the server may be given it twice. Tries until
  /// the deadline, then throws Error(kStore); an error that only the user can mend is thrown at once. An answer may be an
  /// error.
  Reply call(const std::vector<std::string>& arguments, Deadline deadline);

  /// The same for a script and its arguments; `key` is one that it uses.
  Reply evaluate(const char* script, const std::string& key, const std::vector<std::string>& arguments,
                 Deadline deadline);

  const Url& url() const noexcept { return url_; }
  const std::shared_ptr<const transport::Credentials>& credentials() const noexcept { return credentials_; }

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
