// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/membership.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/redis/script.h"
#include "atoll/transport/auth.h"

namespace atl::redis {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{500};
constexpr milliseconds kJoinPause{200};
constexpr milliseconds kPatience{2000};  // for a sign of life

std::string text_of(std::optional<int> number) { return number ? std::to_string(*number) : ""; }

Error rank_is_taken(const Url& url, bool is_alive) {
  const char* const why =
      is_alive ? " is already alive: another job of this name is running; give this one a name of its own"
               : " has died, while others of that job are alive: end them, or give this job another name";
  return {
      ErrorKind::kInvalidArgument, "rank ", text_of(url.rank), " of job \"", url.job, "\" at ", to_string(url), why};
}

/// The memberships of this process.
struct Memberships {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Membership>> by_name;
};

Memberships& memberships() {
  static auto* const all = new Memberships;  // never destroyed: other static objects may still use it
  return *all;
}

}  // namespace

std::string random_name() {
  std::array<std::byte, 8> random;
  transport::fill_random(random);
  return hex(random);
}

std::string prefix_of(const std::string& job) { return "atoll:{" + job + "}:"; }

/// The thread that gives signs of life, and what it shares with its owner.
struct Membership::Keeper {
  Keeper(const Membership& membership, const LifeSigns& signs)
      : owner(membership), every(signs.every), server(membership.connect()) {
    thread = std::thread([this] { run(); });
    ::pthread_setname_np(thread.native_handle(), "atoll-redis");
  }

  ~Keeper() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
    if (is_in_touch) leave();
  }

  std::vector<std::string> command(const char* operation) const {
    return {owner.prefix_, owner.incarnation_, owner.client_, "0", "0", std::to_string(owner.url_.expiry.count()),
            operation};
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, every, [this] { return stopping; })) {
      lock.unlock();
      const bool continues = refresh();
      lock.lock();
      if (!continues) return;
    }
  }

  /// Returns false when the job is over for this process.
  bool refresh() {
    const std::string who = "the Redis server at " + to_string(owner.url_);
    try {
      const Reply reply = server.evaluate(kCallScript, owner.job_key(), command("refresh"),
                                          Deadline::after(std::min(every, kPatience)));
      if (reply.kind != Reply::Kind::kError) {
        if (!std::exchange(is_in_touch, true)) log(LogLevel::kWarning, who + " answers again");
        return true;
      }
      is_in_touch = false;
      log(LogLevel::kError, owner.explain("a sign of life", reply).what());
      return !reply.text.starts_with("ATOLL");
    } catch (const Error& error) {
      if (std::exchange(is_in_touch, false)) {
        log(LogLevel::kWarning, std::string(error.what()) + "; the job needs it again for its next group or restart");
      }
      return true;
    }
  }

  void leave() {
    try {
      auto goodbye = command("leave");
      goodbye.push_back(text_of(owner.url_.rank));
      server.evaluate(kCallScript, owner.job_key(), goodbye, Deadline::after(kFarewell));
    } catch (const Error&) {  // it will soon count as dead
    }
  }

  const Membership& owner;
  const milliseconds every;
  Server server;
  bool is_in_touch = true;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  std::thread thread;
};

Membership::Membership(const Url& url, const LifeSigns& signs, Deadline deadline)
    : url_(url), process_(fork_depth()), prefix_(prefix_of(url.job)), client_(random_name()) {
  check_job_name(url.job);
  if (url.rank.has_value() != url.world_size.has_value() || (url.rank && *url.rank >= *url.world_size)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a member of a job has a rank below its world_size, or neither of them; got rank \"" +
                    text_of(url.rank) + "\" and world_size \"" + text_of(url.world_size) + "\"");
  }
  credentials_ = credentials_of(url);
  enter(signs, deadline);
  keeper_ = std::make_unique<Keeper>(*this, signs);
}

Membership::~Membership() { leave(); }

std::shared_ptr<Membership> Membership::join(const Url& url, const LifeSigns& signs, Deadline deadline) {
  // The name includes what authenticates the two sides: a store with other credentials must not share a membership that
  // was obtained with these. A forked process has no part in the memberships of its parent.
  std::string name;
  for (const std::string& part :
       {to_string(url), url.job, text_of(url.rank), url.user, url.password, url.authorities_file, url.certificate_file,
        url.key_file, std::to_string(fork_depth())}) {
    name += part + '\0';
  }
  {
    const std::lock_guard lock(memberships().mutex);
    if (auto known = memberships().by_name[name].lock()) return known;
  }
  auto fresh = std::make_shared<Membership>(url, signs, deadline);
  const std::lock_guard lock(memberships().mutex);
  std::erase_if(memberships().by_name, [](const auto& entry) { return entry.second.expired(); });
  memberships().by_name[name] = fresh;
  return fresh;
}

void Membership::leave() noexcept {
  if (process_ != fork_depth()) {
    // The thread does not exist here, and may have held its mutex at the fork.
    static_cast<void>(keeper_.release());
    return;
  }
  const std::lock_guard lock(leaving_);
  keeper_.reset();
}

void Membership::leave_all() noexcept {
  std::vector<std::shared_ptr<Membership>> all;
  {
    const std::lock_guard lock(memberships().mutex);
    for (const auto& [name, membership] : memberships().by_name) all.push_back(membership.lock());
  }
  for (const auto& membership : all) {
    if (membership) membership->leave();
  }
}

Server Membership::connect() const { return {url_, credentials_}; }

void Membership::enter(const LifeSigns& signs, Deadline deadline) {
  Server server = connect();
  const std::string fresh = random_name();
  std::vector<std::string> arguments{prefix_,
                                     client_,
                                     fresh,
                                     std::to_string(url_.expiry.count()),
                                     std::to_string(signs.dead_after.count()),
                                     text_of(url_.world_size),
                                     text_of(url_.rank),
                                     ""};
  std::optional<Deadline> patience;
  std::optional<std::pair<bool, std::int64_t>> last;  // whether that rank was alive, and the silence
  for (;;) {
    const Reply reply = server.evaluate(kOpenScript, job_key(), arguments, deadline);
    if (reply.kind == Reply::Kind::kError) throw explain("joining", reply);
    if (reply.elements.size() != 2) {
      throw Error(ErrorKind::kProtocol,
                  "the Redis server at " + to_string(url_) + " sent a reply that Atoll's script never returns");
    }
    const std::string& outcome = reply.elements[0].text;
    const std::string& value = reply.elements[1].text;
    if (outcome == "ok") {
      incarnation_ = value;
      return;
    }
    if (outcome == "size") {
      throw Error(ErrorKind::kInvalidArgument, "job \"", url_.job, "\" at ", to_string(url_), " has ", value,
                  " ranks, not ", text_of(url_.world_size),
                  ": give all of its ranks the same world_size, or this job another name");
    }
    if (outcome == "silent") {
      // Its members are dead, or could not reach the server until now. Those that live retry soon and keep their job.
      if (!patience) patience = Deadline::after(signs.every + std::min(signs.every, kPatience));
      if (patience->expired() || deadline.remaining(kJoinPause) < kJoinPause) arguments.back() = "insists";
      std::this_thread::sleep_for(std::min<Clock::duration>(kJoinPause, patience->remaining(kJoinPause)));
      continue;
    }
    // A live member is heard soon: that rank or, when it is known to be dead, another of its job. A job that was killed
    // is not heard, and starts again.
    const bool is_alive = outcome != "dead";
    const auto silence = std::strtoll(value.c_str(), nullptr, 10);
    if (last && last->first == is_alive && silence < last->second) throw rank_is_taken(url_, is_alive);
    last.emplace(is_alive, silence);
    if (deadline.remaining(kJoinPause) < kJoinPause) throw rank_is_taken(url_, is_alive);
    std::this_thread::sleep_for(kJoinPause);
  }
}

void Membership::expect_own_process() const {
  if (process_ == fork_depth()) return;
  throw Error(ErrorKind::kInvalidArgument,
              "this RedisStore was made by the process from which this one was forked: make a new one here");
}

Error Membership::explain(const std::string& action, const Reply& reply) const {
  const std::string job = "job \"" + url_.job + "\"";
  const std::string server = "the Redis server at " + to_string(url_);
  if (reply.text.starts_with("ATOLLGONE")) {
    return {ErrorKind::kStore, action + ": " + server + " has lost the keys of " + job +
                                   ": it was started again without its data, or they were removed; start the job again "
                                   "(with \"appendonly yes\" the server keeps them over a restart)"};
  }
  if (reply.text.starts_with("ATOLLANEW")) {
    return {ErrorKind::kStore,
            action,
            ": ",
            job,
            " at ",
            server,
            " was started again by other processes, after its keys were lost or this process had long given no sign of "
            "life; start this process again"};
  }
  if (reply.text.starts_with("ATOLLSTALE")) {
    return {ErrorKind::kStore, action + ": " + server + " has come back with older keys of " + job +
                                   ", without the last changes; start the job again (\"appendfsync always\" keeps all "
                                   "of them over a restart)"};
  }
  return {ErrorKind::kStore, action + ": " + server + " answered \"" + reply.text.substr(0, 300) + "\""};
}

namespace {

constexpr std::string_view kJobKeyPrefix = "atoll:{";
constexpr std::string_view kJobKeySuffix = "}:job";
constexpr std::int64_t kLatest = 1'000'000'000'000;  // seconds since 1970

template <typename Number>
Number number(const std::string& text) {
  Number value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Reply checked(const Reply& reply, const Url& url) {
  if (reply.kind != Reply::Kind::kError) return reply;
  throw Error(ErrorKind::kStore, "listing the jobs: the Redis server at " + to_string(url) + " answered \"" +
                                     reply.text.substr(0, 200) + "\"");
}

bool may_be_a_job(const std::string& name) {
  try {
    check_job_name(name);
    return true;
  } catch (const Error&) {
    return false;  // not a key of Atoll
  }
}

std::set<std::string> names(Server& server, Deadline deadline) {
  std::set<std::string> found;
  std::string cursor = "0";
  do {
    const Reply reply =
        checked(server.call({"SCAN", cursor, "MATCH", "atoll:{*}:job", "COUNT", "1000"}, deadline), server.url());
    if (reply.elements.size() != 2) break;
    cursor = reply.elements[0].text;
    if (cursor != "0" && deadline.expired()) {
      throw Error(ErrorKind::kStore, "listing the jobs: the Redis server at " + to_string(server.url()) +
                                         " has not listed all of its keys in time; ?job=NAME lists one job");
    }
    for (const auto& key : reply.elements[1].elements) {
      if (key.text.size() <= kJobKeyPrefix.size() + kJobKeySuffix.size()) continue;
      const auto name =
          key.text.substr(kJobKeyPrefix.size(), key.text.size() - kJobKeyPrefix.size() - kJobKeySuffix.size());
      if (may_be_a_job(name)) found.insert(name);
    }
  } while (cursor != "0" && !cursor.empty());
  return found;
}

std::map<std::string, std::string> hash(Server& server, const std::string& key, Deadline deadline) {
  const Reply reply = checked(server.call({"HGETALL", key}, deadline), server.url());
  std::map<std::string, std::string> fields;
  for (std::size_t i = 0; i + 1 < reply.elements.size(); i += 2) {
    fields[reply.elements[i].text] = reply.elements[i + 1].text;
  }
  return fields;
}

std::int64_t now_ms(Server& server, Deadline deadline) {
  const Reply reply = checked(server.call({"TIME"}, deadline), server.url());
  const auto seconds = reply.elements.empty() ? 0 : number<std::int64_t>(reply.elements[0].text);
  if (seconds <= 0 || seconds > kLatest) {
    throw Error(ErrorKind::kProtocol,
                "listing the jobs: the Redis server at " + to_string(server.url()) + " sent an invalid time");
  }
  return 1000 * seconds;
}

}  // namespace

std::vector<JobView> list_jobs(const Url& url, Deadline deadline) {
  Server server(url, credentials_of(url));
  std::vector<JobView> views;
  const auto wanted = url.job.empty() ? names(server, deadline) : std::set<std::string>{url.job};
  for (const auto& name : wanted) {
    const std::string prefix = prefix_of(name);
    auto job = hash(server, prefix + "job", deadline);
    if (job.empty()) continue;
    JobView view{name, number<std::int64_t>(job["created"]), std::max(0, number<int>(job["world_size"]))};
    const auto since = std::to_string(now_ms(server, deadline) - LifeSigns{}.dead_after.count());
    const auto alive = checked(server.call({"ZCOUNT", prefix + "alive", since, "+inf"}, deadline), url).integer;
    view.alive = static_cast<int>(std::clamp<std::int64_t>(alive, 0, std::numeric_limits<int>::max()));
    for (auto& [rank, json] : hash(server, prefix + "members", deadline)) view.members[number<int>(rank)] = json;
    views.push_back(std::move(view));
  }
  std::ranges::sort(views, {}, [](const JobView& each) { return std::tie(each.created, each.name); });
  return views;
}

}  // namespace atl::redis
