// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/server.h"
#include "atoll/redis/url.h"

namespace atl::redis {

/// The interval at which a member of a job gives a sign of life, and the silence after which it counts as dead.
struct LifeSigns {
  std::chrono::milliseconds every{5000};
  std::chrono::milliseconds dead_after{15000};
};

/// A process's membership in a job, shared by its stores. As long as it exists, a thread gives signs of life, which
/// also keep the job's keys from expiring. The job ends with its last member. A forked child does not inherit it.
class Membership {
 public:
  /// Joins url.job, as url.rank of url.world_size if they are given, and returns the membership that this process
  /// already has there, if any. A job without a live member starts again. Throws Error(kInvalidArgument) when that rank
  /// is already alive or the job has another size, and kStore.
  static std::shared_ptr<Membership> join(const Url& url, const LifeSigns& signs, Deadline deadline);

  /// Stops the signs of life and leaves the job, as the destructor does; takes up to 2.5 s when the server stalls.
  void leave() noexcept;
  /// Leaves every job of this process, at its exit.
  static void leave_all() noexcept;

  /// Used by join().
  Membership(const Url& url, const LifeSigns& signs, Deadline deadline);
  ~Membership();

  /// Opens another connection to the server.
  Server connect() const;

  /// The prefix of the job's keys, which each script takes first, and the key that stands for the job.
  const std::string& prefix() const noexcept { return prefix_; }
  std::string job_key() const { return prefix_ + "job"; }
  const std::string& incarnation() const noexcept { return incarnation_; }
  const Url& url() const noexcept { return url_; }

  /// Throws Error(kInvalidArgument) in a process that has inherited it.
  void expect_own_process() const;

  /// Explains an error of kCallScript. `action` is what was tried.
  Error explain(const std::string& action, const Reply& reply) const;

 private:
  struct Keeper;
  void enter(const LifeSigns& signs, Deadline deadline);

  const Url url_;
  const std::uint32_t process_;
  const std::string prefix_;
  const std::string client_;
  std::string incarnation_;
  std::shared_ptr<const transport::Credentials> credentials_;
  std::mutex leaving_;
  std::unique_ptr<Keeper> keeper_;
};

/// 16 random hexadecimal digits.
std::string random_name();

/// "atoll:{JOB}:"
std::string prefix_of(const std::string& job);

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
