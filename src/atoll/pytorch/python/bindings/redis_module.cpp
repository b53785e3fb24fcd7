// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/redis/job_store.h"
#include "atoll/redis/membership.h"

namespace atl::pytorch {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::uint8_t>;

Deadline deadline_of(milliseconds timeout) {
  return timeout == c10d::Store::kNoTimeout ? Deadline::never() : Deadline::after(timeout);
}

std::string to_text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// Reports a timeout as an error of the store, as torch expects.
template <typename Body>
decltype(auto) as_store_error(Body&& body) {
  return translated([&]() -> decltype(auto) {
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kTimeout) throw Error(ErrorKind::kStore, error.what());
      throw;
    }
  });
}

redis::Url url_of(const std::string& text) {
  redis::Url url = redis::with_environment(redis::parse_url(text));
  if (url.job.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the store at " + redis::to_string(url) +
                    " may serve many jobs: name this one, as in redis://HOST:PORT/?job=NAME");
  }
  return url;
}

/// A job's store in a Redis server, for torch.distributed (docs/redis.md). Its waits do not release the GIL, which
/// torch's bindings do. Errors are torch's: DistStoreError for a server that cannot be used and for a key that is not
/// set in time.
class RedisStore final : public c10d::Store {
 public:
  /// Joins the job that `url` names, within `timeout`; zero waits forever, here and in all calls.
  RedisStore(const std::string& url, milliseconds timeout)
      : Store(timeout),
        store_(as_store_error([&] { return redis::JobStore::open(url_of(url), deadline_of(timeout)); })) {}
  RedisStore(std::shared_ptr<redis::JobStore> store, milliseconds timeout) : Store(timeout), store_(std::move(store)) {}
  ~RedisStore() override {
    const ReleaseGil others_may_need_it;  // the last clone takes leave of the server
    store_.reset();
  }
  RedisStore(const RedisStore&) = delete;
  RedisStore& operator=(const RedisStore&) = delete;

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<RedisStore>(as_store_error([&] { return store_->clone(); }), timeout_);
  }
  void set(const std::string& key, const Bytes& value) override {
    as_store_error([&] { store_->set(key, to_text(value), deadline()); });
  }
  Bytes get(const std::string& key) override {
    return as_store_error([&] { return to_bytes(store_->get(key, deadline())); });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) override {
    return as_store_error(
        [&] { return to_bytes(store_->compare_set(key, to_text(expected), to_text(wanted), deadline())); });
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return as_store_error([&] { return store_->add(key, value, deadline()); });
  }
  bool deleteKey(const std::string& key) override {
    return as_store_error([&] { return store_->remove(key, deadline()); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return as_store_error([&] { return store_->has(keys, deadline()); });
  }
  std::int64_t getNumKeys() override {
    return as_store_error([&] { return store_->count(deadline()); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    as_store_error([&] { store_->wait(keys, deadline_of(timeout)); });
  }
  void append(const std::string& key, const Bytes& value) override {
    as_store_error([&] { store_->append(key, to_text(value), deadline()); });
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    return as_store_error([&] {
      std::vector<Bytes> values;
      for (const auto& value : store_->multi_get(keys, deadline())) values.push_back(to_bytes(value));
      return values;
    });
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    as_store_error([&] {
      if (keys.size() != values.size()) {
        throw Error(ErrorKind::kInvalidArgument, "multi_set needs one value for each key, got " +
                                                     std::to_string(keys.size()) + " keys and " +
                                                     std::to_string(values.size()) + " values");
      }
      std::vector<std::pair<std::string, std::string>> pairs;
      for (std::size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], to_text(values[i]));
      store_->multi_set(pairs, deadline());
    });
  }
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const Bytes& value) override {
    as_store_error([&] { store_->push(key, to_text(value), deadline()); });
  }
  Bytes queuePop(const std::string& key, bool block) override {
    return as_store_error([&] {
      if (block) return to_bytes(store_->pop(key, deadline()));
      const auto value = store_->try_pop(key, deadline());
      if (!value) C10_THROW_ERROR(DistQueueEmptyError, "the queue \"" + key + "\" is empty");
      return to_bytes(*value);
    });
  }
  std::int64_t queueLen(const std::string& key) override {
    return as_store_error([&] { return store_->length(key, deadline()); });
  }
  // Not marked as an override, because older releases do not declare it.
  std::vector<std::string> listKeys() {  // NOLINT(modernize-use-override)
    return as_store_error([&] { return store_->list(deadline()); });
  }

  /// Sets what commands that list the job's members show for this rank.
  void publish(int rank, const std::string& json) {
    as_store_error([&] { store_->publish(rank, json, deadline()); });
  }
  /// The server, such as "redis://host:6379/0", and the job's name.
  std::string url() const { return redis::to_string(store_->url()); }
  std::string job() const { return store_->url().job; }

 private:
  Deadline deadline() const { return deadline_of(timeout_); }

  std::shared_ptr<redis::JobStore> store_;
};

std::vector<redis::JobView> jobs(const std::string& url, milliseconds timeout) {
  return redis::list_jobs(redis::with_environment(redis::parse_url(url)), Deadline::after(timeout));
}

/// Bytes, because the text may not be valid UTF-8.
std::map<int, py::bytes> members(const redis::JobView& job) {
  std::map<int, py::bytes> all;
  for (const auto& [rank, json] : job.members) all.emplace(rank, py::bytes(json));
  return all;
}

}  // namespace

void bind_redis(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<RedisStore, c10::intrusive_ptr<RedisStore>, c10d::Store>(
      module, "RedisStore", "A job's store in a Redis server, for torch.distributed.")
      .def(py::init<const std::string&, milliseconds>(), py::arg("url"),
           py::arg("timeout") = milliseconds(c10d::Store::kDefaultTimeout), no_gil)
      .def("publish", &RedisStore::publish, py::arg("rank"), py::arg("json"), no_gil)
      .def_property_readonly("url", &RedisStore::url)
      .def_property_readonly("job", &RedisStore::job);
  py::class_<redis::JobView>(module, "RedisJob", "One job in a Redis server.")
      .def_readonly("name", &redis::JobView::name)
      .def_readonly("created", &redis::JobView::created)
      .def_readonly("world_size", &redis::JobView::world_size)
      .def_readonly("alive", &redis::JobView::alive)
      .def_property_readonly("members", &members);
  module.def("leave_redis_jobs", &redis::Membership::leave_all, no_gil);
  module.def("redis_jobs", &jobs, py::arg("url"), py::arg("timeout"), no_gil);
  module.def(
      "redis_place",
      [](const std::string& url) {
        const auto parsed = redis::parse_url(url);
        return py::make_tuple(redis::to_string(parsed), parsed.job, parsed.rank, parsed.world_size);
      },
      py::arg("url"), "The parts of a URL: the server without its password, the job, rank and world size.");
}

}  // namespace atl::pytorch
