// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/server.h"
#include "atoll/redis/url.h"

namespace atl::redis {

/// How often a member of a job gives a sign of life, and after which silence it counts as dead.
struct LifeSigns {
  std::chrono::milliseconds every{5000};
  std::chrono::milliseconds dead_after{15000};
};

/// Of a process in a job, shared by its stores. While it lives, a thread gives signs of life, which also keep the job's keys from
/// expiring; the job is over with its last member. A process forked by this one has no part in it.
class Membership {
 public:
  /// Joins url.job, as url.rank of url.world_size if they are given; whoever is in already as the same takes part in that
  /// membership. Where nobody of that job is alive, it begins anew. Error(kInvalidArgument) where that rank is there and
  /// alive, or the job has another size; kStore.
  static std::shared_ptr<Membership> join(const Url& url, const LifeSigns& signs, Deadline deadline);

  /// Ends the signs of life and says goodbye, as the destructor does; takes up to 2.5 s beside a server that stalls.
  void leave() noexcept;
  /// The same for all of this process: for its end.
  static void leave_all() noexcept;

  /// For join().
  Membership(const Url& url, const LifeSigns& signs, Deadline deadline);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// A connection of its own.
  Server connect() const;

  /// What each script begins with, and the key that stands for the job.
  const std::string& prefix() const noexcept { return prefix_; }
  std::string job_key() const { return prefix_ + "job"; }
  const std::string& incarnation() const noexcept { return incarnation_; }
  const std::string& client() const noexcept { return client_; }
  const Url& url() const noexcept { return url_; }

  /// Error(kInvalidArgument) in a process that has inherited it.
  void expect_own_process() const;

  /// What an error of kCallScript means. `action` is what was tried.
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

}  // namespace atl::redis
