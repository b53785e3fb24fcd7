// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "atoll/transport/stream/host_port.h"

namespace atl::redis {

inline constexpr std::uint16_t kDefaultPort = 6379;
inline constexpr std::chrono::seconds kDefaultExpiry{3600};

/// Where a job's store is: redis://[USER][:PASSWORD@]HOST[:PORT][/DATABASE][?job=NAME&expiry=SECONDS&...], and rediss://
/// for TLS. HOST:PORT alone means redis://.
struct Url {
  bool tls = false;
  transport::HostPort place{};
  std::string user{};
  std::string password{};
  int database = 0;
  std::string job{};
  std::chrono::seconds expiry = kDefaultExpiry;  ///< of a job's keys, after the last sign of life
  std::string authorities_file{};                ///< ca=: who has signed the server's certificate; empty: the system's
  std::string certificate_file{};                ///< cert=, key=: what the server may want to see
  std::string key_file{};
  std::optional<int> rank{};  ///< what torch.distributed adds
  std::optional<int> world_size{};
};

/// Error(kInvalidArgument) that names the part, its value and what is expected. A password is in no message.
Url parse_url(const std::string& text);

/// What the URL leaves open, from ATOLL_REDIS_PASSWORD_FILE, ATOLL_REDIS_CA, ATOLL_REDIS_CERT and ATOLL_REDIS_KEY.
/// The password file is for its owner alone, as read_key_file wants it.
Url with_environment(Url url);

/// "redis://host:6379/0", for messages: without password and options.
std::string to_string(const Url& url);

/// Error(kInvalidArgument) unless `job` can be part of a key: 1 to 200 printable characters but no space and none of {}*?[]\.
void check_job_name(const std::string& job);

}  // namespace atl::redis
