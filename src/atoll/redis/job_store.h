// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/redis/membership.h"
#include "atoll/redis/server.h"

namespace atl::redis {

/// The key-value store of a job in a Redis server. A change is made once, even when the connection breaks and the call
/// is repeated. Thread-safe; threads that should not wait for each other's calls take a clone. Every call ends by its
/// deadline and throws Error(kTimeout) for a key that did not appear, kStore for a server that cannot be used or has
/// lost the job's keys, and kInvalidArgument in a forked process. Keys and values may hold any bytes.
class JobStore {
 public:
  /// Joins the job. Throws what Membership throws.
  static std::shared_ptr<JobStore> open(const Url& url, Deadline deadline, const LifeSigns& signs = {});

  explicit JobStore(std::shared_ptr<Membership> membership);
  /// Returns the same store over a connection of its own.
  std::shared_ptr<JobStore> clone() const;

  void set(const std::string& key, const std::string& value, Deadline deadline);
  void multi_set(const std::vector<std::pair<std::string, std::string>>& values, Deadline deadline);
  /// Waits for the key.
  std::string get(const std::string& key, Deadline deadline);
  /// Waits for all keys.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, Deadline deadline);
  void wait(const std::vector<std::string>& keys, Deadline deadline);
  bool has(const std::vector<std::string>& keys, Deadline deadline);
  /// Returns the sum; a missing key counts as 0.
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline);
  /// Returns the key's value afterwards, as c10d::Store::compareSet does: `wanted` if it was `expected`, or if it was
  /// missing and `expected` is empty.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& wanted,
                          Deadline deadline);
  void append(const std::string& key, const std::string& value, Deadline deadline);
  /// Returns whether the key existed.
  bool remove(const std::string& key, Deadline deadline);
  std::int64_t count(Deadline deadline);
  std::vector<std::string> list(Deadline deadline);

  void push(const std::string& queue, const std::string& value, Deadline deadline);
  /// Takes the oldest value, if there is one.
  std::optional<std::string> try_pop(const std::string& queue, Deadline deadline);
  std::string pop(const std::string& queue, Deadline deadline);
  std::int64_t length(const std::string& queue, Deadline deadline);

  /// Publishes what `rank` reports about itself, for list_jobs (membership.h).
  void publish(int rank, const std::string& json, Deadline deadline);

  const Url& url() const noexcept { return membership_->url(); }

 private:
  Reply call(const char* operation, const std::vector<std::string>& arguments, bool changes, Deadline deadline);
  Reply read(const char* operation, const std::vector<std::string>& arguments, Deadline deadline);
  std::optional<std::string> change(const char* operation, const std::vector<std::string>& arguments,
                                    Deadline deadline);
  /// Holds the connection for one thread. Throws Error(kStore) when another thread holds it until `deadline`.
  class Turn {
   public:
    Turn(JobStore& store, Deadline deadline);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    JobStore& store_;
  };

  const std::shared_ptr<Membership> membership_;
  const std::string client_ = random_name();
  std::mutex mutex_;
  std::condition_variable is_free_;
  bool in_use_ = false;
  Server server_;
  std::uint64_t answered_ = 0;  // the last change whose outcome is known
  std::uint64_t sent_ = 0;
};

}  // namespace atl::redis
