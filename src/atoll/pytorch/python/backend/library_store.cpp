// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>
#include <utility>

#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/store/store.h"

namespace atl::pytorch {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Bytes = std::vector<std::uint8_t>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr Milliseconds kMinStorePause{1};
constexpr Milliseconds kMaxStorePause{20};

/// The job's store, whose waits also end when the group has failed or the server does not answer.
class LibraryStore final : public c10d::Store {
 public:
  LibraryStore(StorePtr root, Milliseconds timeout, std::weak_ptr<collectives::Group> group)
      : Store(timeout), root_(std::move(root)), group_(std::move(group)) {}

  using Store::compareSet;
  using Store::set;

  StorePtr clone() override { return c10::make_intrusive<LibraryStore>(root_->clone(), timeout_, group_); }

  void set(const std::string& key, const Bytes& value) override {
    call("set key \"" + key + "\"", [root = root_, key, value] { root->set(key, value); });
  }

  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) override {
    return call("set key \"" + key + "\"",
                [root = root_, key, expected, wanted] { return root->compareSet(key, expected, wanted); });
  }

  Bytes get(const std::string& key) override {
    wait({key}, timeout_);
    return call("read key \"" + key + "\"", [root = root_, key] { return root->get(key); });
  }

  std::int64_t add(const std::string& key, std::int64_t value) override {
    return call("added to key \"" + key + "\"", [root = root_, key, value] { return root->add(key, value); });
  }

  bool deleteKey(const std::string& key) override {
    return call("removed key \"" + key + "\"", [root = root_, key] { return root->deleteKey(key); });
  }

  bool check(const std::vector<std::string>& keys) override {
    return call("looked for key \"" + keys.front() + "\"", [root = root_, keys] { return root->check(keys); });
  }

  std::int64_t getNumKeys() override {
    return call("counted keys", [root = root_] { return root->getNumKeys(); });
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  // Polls, because a wait in the store itself could not be ended and would block the store's other users.
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    if (keys.empty()) return;
    const auto limit = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
    for (auto pause = kMinStorePause; !check(keys); pause = std::min(2 * pause, kMaxStorePause)) {
      if (const auto group = group_.lock()) {
        if (const auto error = group->error()) std::rethrow_exception(as_torch(error));
      }
      TORCH_CHECK_WITH(DistStoreError, !limit.expired(), "timed out after ", timeout.count(), " ms waiting for key \"",
                       keys.front(), "\" in the job's store");
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  template <typename Body>
  std::invoke_result_t<Body> call(const std::string& action, Body body) {
    try {
      return store_call(root_, Deadline::after(timeout_), action, std::move(body));
    } catch (const Error& error) {
      throw_as_torch(error);
    }
  }

  const StorePtr root_;
  const std::weak_ptr<collectives::Group> group_;
};

}  // namespace

StorePtr store_for_library(const StorePtr& store, const std::string& prefix, Milliseconds timeout,
                           std::weak_ptr<collectives::Group> group) {
  auto below = c10::make_intrusive<LibraryStore>(root_of(store), timeout, std::move(group));
  return c10::make_intrusive<c10d::PrefixStore>(prefixes_of(store) + prefix, std::move(below));
}

}  // namespace atl::pytorch
