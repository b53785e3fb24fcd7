// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/job_store.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/redis/script.h"

namespace atl::redis {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kMinPause = milliseconds(1);
constexpr nanoseconds kMaxPause = milliseconds(50);
constexpr nanoseconds kMinCall = milliseconds(250);  // granted to each call, however little time is left
constexpr std::size_t kKeysPerCall = 4096;
constexpr std::size_t kValuesPerCall = 128;
constexpr std::size_t kMaxKeyShown = 200;

Deadline at_least(nanoseconds time, Deadline deadline) {
  const auto soon = Deadline::after(time);
  return deadline.when() < soon.when() ? soon : deadline;
}

std::string quoted(const std::string& key) { return "\"" + key.substr(0, kMaxKeyShown) + "\""; }

Error not_in_time(const std::string& what, const Url& url, Clock::time_point start) {
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  return {ErrorKind::kTimeout, what + " in the job's store (" + to_string(url) + ", job \"" + url.job + "\") within " +
                                   std::to_string(waited.count()) + " ms"};
}

/// Calls `look` until it finds something, for the last time at the deadline; `what` is for the error. The pause between
/// two calls is at most a quarter of the time waited so far, so that what appears early is seen early.
template <typename Look, typename What>
auto poll_until(Deadline deadline, const Url& url, const Look& look, const What& what) {
  const auto start = Clock::now();
  for (;;) {
    const bool is_last = deadline.expired();
    if (auto found = look()) return *std::move(found);
    if (is_last) throw not_in_time(what(), url, start);
    const auto waited = std::chrono::duration_cast<nanoseconds>(Clock::now() - start);
    std::this_thread::sleep_for(deadline.remaining(std::clamp(waited / 4, kMinPause, kMaxPause)));
  }
}

Error unexpected_script_reply(const Url& url) {
  return {ErrorKind::kProtocol,
          "the Redis server at " + to_string(url) + " sent a reply that Atoll's script never returns"};
}

std::vector<std::string> slice(const std::vector<std::string>& all, std::size_t first, std::size_t most) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(std::min(most, all.size() - first))};
}

}  // namespace

std::shared_ptr<JobStore> JobStore::open(const Url& url, Deadline deadline, const LifeSigns& signs) {
  return std::make_shared<JobStore>(Membership::join(url, signs, deadline));
}

JobStore::JobStore(std::shared_ptr<Membership> membership)
    : membership_(std::move(membership)), server_(membership_->connect()) {}

std::shared_ptr<JobStore> JobStore::clone() const {
  membership_->expect_own_process();
  return std::make_shared<JobStore>(membership_);
}

// Rather than a std::timed_mutex, whose waits the thread sanitizer of g++ 12 does not see.
JobStore::Turn::Turn(JobStore& store, Deadline deadline) : store_(store) {
  store.membership_->expect_own_process();
  std::unique_lock lock(store.mutex_);
  const auto is_free = [&] { return !store.in_use_; };
  if (deadline.is_never()) {
    store.is_free_.wait(lock, is_free);
  } else if (!store.is_free_.wait_until(lock, deadline.when(), is_free)) {
    throw Error(ErrorKind::kStore, "the job's store at " + to_string(store.url()) +
                                       " is in use by another thread, whose call has not ended: use a clone of it");
  }
  store.in_use_ = true;
}

JobStore::Turn::~Turn() {
  const std::lock_guard lock(store_.mutex_);
  store_.in_use_ = false;
  store_.is_free_.notify_one();
}

Reply JobStore::call(const char* operation, const std::vector<std::string>& arguments, bool changes,
                     Deadline deadline) {
  deadline = at_least(kMinCall, deadline);
  const Turn turn(*this, deadline);
  const std::uint64_t change = changes ? ++sent_ : 0;
  std::vector<std::string> all{
      membership_->prefix(),  membership_->incarnation(),           client_,  std::to_string(answered_),
      std::to_string(change), std::to_string(url().expiry.count()), operation};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Reply reply = server_.evaluate(kCallScript, membership_->job_key(), all, deadline);
  if (reply.kind == Reply::Kind::kError) {
    const std::string of = arguments.empty() ? "" : " of " + quoted(arguments.front());
    throw membership_->explain("the job's store failed in " + std::string(operation) + of, reply);
  }
  if (changes) answered_ = change;
  return reply;
}

Reply JobStore::read(const char* operation, const std::vector<std::string>& arguments, Deadline deadline) {
  return call(operation, arguments, false, deadline);
}

std::optional<std::string> JobStore::change(const char* operation, const std::vector<std::string>& arguments,
                                            Deadline deadline) {
  Reply reply = call(operation, arguments, true, deadline);
  if (reply.kind == Reply::Kind::kNil) return std::nullopt;
  return std::move(reply.text);
}

void JobStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  change("set", {key, value}, deadline);
}

void JobStore::multi_set(const std::vector<std::pair<std::string, std::string>>& values, Deadline deadline) {
  for (std::size_t first = 0; first < values.size(); first += kKeysPerCall) {
    std::vector<std::string> arguments;
    for (std::size_t i = first; i < std::min(first + kKeysPerCall, values.size()); ++i) {
      arguments.push_back(values[i].first);
      arguments.push_back(values[i].second);
    }
    change("set", arguments, deadline);
  }
}

std::string JobStore::get(const std::string& key, Deadline deadline) {
  const auto look = [&]() -> std::optional<std::string> {
    Reply reply = read("get", {key}, deadline);
    if (reply.kind == Reply::Kind::kText) return std::move(reply.text);
    return std::nullopt;
  };
  return poll_until(deadline, url(), look, [&] { return "the key " + quoted(key) + " did not appear"; });
}

void JobStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  for (std::size_t first = 0; first < keys.size(); first += kKeysPerCall) {
    const auto part = slice(keys, first, kKeysPerCall);
    std::size_t missing = 0;  // counted from 1
    const auto look = [&]() -> std::optional<bool> {
      missing = static_cast<std::size_t>(read("missing", part, deadline).integer);
      if (missing > part.size()) throw unexpected_script_reply(url());
      return missing == 0 ? std::optional(true) : std::nullopt;
    };
    poll_until(deadline, url(), look, [&] { return "the key " + quoted(part[missing - 1]) + " did not appear"; });
  }
}

std::vector<std::string> JobStore::multi_get(const std::vector<std::string>& keys, Deadline deadline) {
  wait(keys, deadline);
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (std::size_t first = 0; first < keys.size(); first += kValuesPerCall) {
    const auto part = slice(keys, first, kValuesPerCall);
    Reply reply = read("multi_get", part, deadline);
    if (reply.elements.size() != part.size()) throw unexpected_script_reply(url());
    for (std::size_t i = 0; i < part.size(); ++i) {
      auto& value = reply.elements[i];  // nil: it was removed after the wait
      values.push_back(value.kind == Reply::Kind::kText ? std::move(value.text) : get(part[i], deadline));
    }
  }
  return values;
}

bool JobStore::has(const std::vector<std::string>& keys, Deadline deadline) {
  for (std::size_t first = 0; first < keys.size(); first += kKeysPerCall) {
    if (read("missing", slice(keys, first, kKeysPerCall), deadline).integer != 0) return false;
  }
  return true;
}

std::int64_t JobStore::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  const auto sum = to_number<std::int64_t>(change("add", {key, std::to_string(amount)}, deadline).value_or(""));
  if (!sum) throw unexpected_script_reply(url());
  return *sum;
}

std::string JobStore::compare_set(const std::string& key, const std::string& expected, const std::string& wanted,
                                  Deadline deadline) {
  return change("compare_set", {key, expected, wanted}, deadline).value_or("");
}

void JobStore::append(const std::string& key, const std::string& value, Deadline deadline) {
  change("append", {key, value}, deadline);
}

bool JobStore::remove(const std::string& key, Deadline deadline) { return change("delete", {key}, deadline) == "1"; }

std::int64_t JobStore::count(Deadline deadline) { return read("count", {}, deadline).integer; }

std::vector<std::string> JobStore::list(Deadline deadline) {
  const auto start = Clock::now();
  const auto least = at_least(kMinCall, deadline);
  std::set<std::string> keys;  // a scan may name a key twice
  std::string cursor = "0";
  do {
    Reply reply = read("list", {cursor}, deadline);
    if (reply.elements.size() != 2) throw unexpected_script_reply(url());
    cursor = reply.elements[0].text;
    auto& fields = reply.elements[1].elements;
    for (std::size_t i = 0; i + 1 < fields.size(); i += 2) keys.insert(std::move(fields[i].text));
    if (cursor != "0" && least.expired()) throw not_in_time("not all keys were listed", url(), start);
  } while (cursor != "0");
  return {keys.begin(), keys.end()};
}

void JobStore::push(const std::string& queue, const std::string& value, Deadline deadline) {
  change("queue_push", {queue, value}, deadline);
}

std::optional<std::string> JobStore::try_pop(const std::string& queue, Deadline deadline) {
  return change("queue_pop", {queue}, deadline);
}

std::string JobStore::pop(const std::string& queue, Deadline deadline) {
  return poll_until(
      deadline, url(), [&] { return try_pop(queue, deadline); },
      [&] { return "nothing arrived in the queue " + quoted(queue); });
}

std::int64_t JobStore::length(const std::string& queue, Deadline deadline) {
  return read("queue_length", {queue}, deadline).integer;
}

void JobStore::publish(int rank, const std::string& json, Deadline deadline) {
  read("publish", {std::to_string(rank), json}, deadline);
}

}  // namespace atl::redis
