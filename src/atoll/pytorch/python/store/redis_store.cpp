// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/store/redis_store.h"

#include <utility>

#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

namespace {

using std::chrono::milliseconds;

Deadline deadline_of(milliseconds timeout) {
  return timeout == c10d::Store::kNoTimeout ? Deadline::never() : Deadline::after(timeout);
}

std::string to_text(const RedisStore::Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

RedisStore::Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

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

}  // namespace

RedisStore::RedisStore(const std::string& url, milliseconds timeout)
    : Store(timeout),
      store_(as_store_error([&] { return redis::JobStore::open(url_of(url), deadline_of(timeout)); })) {}

RedisStore::RedisStore(std::shared_ptr<redis::JobStore> store, milliseconds timeout)
    : Store(timeout), store_(std::move(store)) {}

RedisStore::~RedisStore() {
  const ReleaseGil others_may_need_it;  // the last clone takes leave of the server
  store_.reset();
}

Deadline RedisStore::deadline() const { return deadline_of(timeout_); }

c10::intrusive_ptr<c10d::Store> RedisStore::clone() {
  return c10::make_intrusive<RedisStore>(as_store_error([&] { return store_->clone(); }), timeout_);
}

void RedisStore::set(const std::string& key, const Bytes& value) {
  as_store_error([&] { store_->set(key, to_text(value), deadline()); });
}

RedisStore::Bytes RedisStore::get(const std::string& key) {
  return as_store_error([&] { return to_bytes(store_->get(key, deadline())); });
}

RedisStore::Bytes RedisStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) {
  return as_store_error(
      [&] { return to_bytes(store_->compare_set(key, to_text(expected), to_text(wanted), deadline())); });
}

std::int64_t RedisStore::add(const std::string& key, std::int64_t value) {
  return as_store_error([&] { return store_->add(key, value, deadline()); });
}

bool RedisStore::deleteKey(const std::string& key) {
  return as_store_error([&] { return store_->remove(key, deadline()); });
}

bool RedisStore::check(const std::vector<std::string>& keys) {
  return as_store_error([&] { return store_->has(keys, deadline()); });
}

std::int64_t RedisStore::getNumKeys() {
  return as_store_error([&] { return store_->count(deadline()); });
}

void RedisStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void RedisStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  as_store_error([&] { store_->wait(keys, deadline_of(timeout)); });
}

void RedisStore::append(const std::string& key, const Bytes& value) {
  as_store_error([&] { store_->append(key, to_text(value), deadline()); });
}

std::vector<RedisStore::Bytes> RedisStore::multiGet(const std::vector<std::string>& keys) {
  return as_store_error([&] {
    std::vector<Bytes> values;
    for (const auto& value : store_->multi_get(keys, deadline())) values.push_back(to_bytes(value));
    return values;
  });
}

void RedisStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
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

void RedisStore::queuePush(const std::string& key, const Bytes& value) {
  as_store_error([&] { store_->push(key, to_text(value), deadline()); });
}

RedisStore::Bytes RedisStore::queuePop(const std::string& key, bool block) {
  return as_store_error([&] {
    if (block) return to_bytes(store_->pop(key, deadline()));
    const auto value = store_->try_pop(key, deadline());
    if (!value) C10_THROW_ERROR(DistQueueEmptyError, "the queue \"" + key + "\" is empty");
    return to_bytes(*value);
  });
}

std::int64_t RedisStore::queueLen(const std::string& key) {
  return as_store_error([&] { return store_->length(key, deadline()); });
}

std::vector<std::string> RedisStore::listKeys() {
  return as_store_error([&] { return store_->list(deadline()); });
}

void RedisStore::publish(int rank, const std::string& json) {
  as_store_error([&] { store_->publish(rank, json, deadline()); });
}

}  // namespace atl::pytorch
