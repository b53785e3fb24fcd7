// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/redis/job_store.h"

namespace atl::pytorch {

/// A job's store in a Redis server, for torch.distributed (docs/redis.md). Its waits do not release the GIL, which
/// torch's bindings do. Errors are torch's: DistStoreError for a server that cannot be used and for a key that is not
/// set in time.
class RedisStore final : public c10d::Store {
 public:
  /// Joins the job that `url` names, within `timeout`; zero waits forever, here and in all calls.
  RedisStore(const std::string& url, std::chrono::milliseconds timeout);
  RedisStore(std::shared_ptr<redis::JobStore> store, std::chrono::milliseconds timeout);
  ~RedisStore() override;
  RedisStore(const RedisStore&) = delete;
  RedisStore& operator=(const RedisStore&) = delete;

  using Bytes = std::vector<std::uint8_t>;

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const Bytes& value) override;
  Bytes get(const std::string& key) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const Bytes& value) override;
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override;
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const Bytes& value) override;
  Bytes queuePop(const std::string& key, bool block) override;
  std::int64_t queueLen(const std::string& key) override;
  // Not marked as an override, because older releases do not declare it.
  std::vector<std::string> listKeys();  // NOLINT(modernize-use-override)

  /// Sets what commands that list the job's members show for this rank.
  void publish(int rank, const std::string& json);
  /// The server, such as "redis://host:6379/0", and the job's name.
  std::string url() const { return redis::to_string(store_->url()); }
  std::string job() const { return store_->url().job; }

 private:
  Deadline deadline() const;

  std::shared_ptr<redis::JobStore> store_;
};

}  // namespace atl::pytorch
