// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/url.h"

namespace atl::redis {

/// One job in a Redis server, as anybody may see it there.
struct JobView {
  std::string name;
  std::int64_t created = 0;              ///< seconds since 1970
  int world_size = 0;                    ///< 0: its members have not said
  int alive = 0;                         ///< processes that have given a sign of life lately
  std::map<int, std::string> members{};  ///< by rank what it has published, as JSON, if it has: any bytes
};

/// The jobs at `url`, oldest first; url.job names one, else all. At most kMaxReplyElements members of each.
std::vector<JobView> list_jobs(const Url& url, Deadline deadline);

}  // namespace atl::redis
