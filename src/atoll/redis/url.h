// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "atoll/transport/stream/host_port.h"

namespace atl::redis {

inline constexpr std::uint16_t kDefaultPort = 6379;
inline constexpr std::chrono::seconds kDefaultExpiry{3600};

/// The place of a job's store: redis://[USER][:PASSWORD@]HOST[:PORT][/DATABASE][?job=NAME&expiry=SECONDS&...], and
/// rediss:// for TLS. HOST:PORT alone means redis://.
struct Url {
  bool tls = false;
  transport::HostPort place{};
  std::string user{};
  std::string password{};
  int database = 0;
  std::string job{};
  std::chrono::seconds expiry = kDefaultExpiry;  ///< of a job's keys, after the last sign of life
  std::string authorities_file{};                ///< ca=: authorities of the server's certificate; empty: the system's
  std::string certificate_file{};                ///< cert=, key=: this client's, if the server requires one
  std::string key_file{};
  std::optional<int> rank{};  ///< added by torch.distributed
  std::optional<int> world_size{};
};

/// Throws Error(kInvalidArgument) naming the part, its value and what is expected. No message shows a password.
Url parse_url(const std::string& text);

/// Fills in what the URL leaves open from ATOLL_REDIS_PASSWORD_FILE, ATOLL_REDIS_CA, ATOLL_REDIS_CERT and
/// ATOLL_REDIS_KEY. The password file must be readable by its owner alone, as for read_key_file.
Url with_environment(Url url);

/// Returns "redis://host:6379/0", for messages: without password and options.
std::string to_string(const Url& url);

/// Throws Error(kInvalidArgument) unless `job` can be part of a key: 1 to 200 printable characters other than space and
/// {}*?[]\.
void check_job_name(const std::string& job);

}  // namespace atl::redis
