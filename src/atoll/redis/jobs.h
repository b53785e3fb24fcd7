// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/url.h"

namespace atl::redis {

/// One job in a Redis server, as any client can see it there.
struct JobView {
  std::string name;
  std::int64_t created = 0;              ///< seconds since 1970
  int world_size = 0;                    ///< 0: not stated by its members
  int alive = 0;                         ///< processes with a recent sign of life
  std::map<int, std::string> members{};  ///< what each rank has published, as JSON; any bytes
};

/// Lists the jobs at `url`, oldest first: the one that url.job names, else all. At most kMaxReplyElements members of
/// each.
std::vector<JobView> list_jobs(const Url& url, Deadline deadline);

}  // namespace atl::redis
