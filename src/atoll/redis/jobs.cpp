// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/jobs.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <string_view>

#include "atoll/core/error.h"
#include "atoll/redis/membership.h"
#include "atoll/redis/server.h"

namespace atl::redis {

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
  std::sort(views.begin(), views.end(), [](const JobView& a, const JobView& b) {
    return a.created != b.created ? a.created < b.created : a.name < b.name;
  });
  return views;
}

}  // namespace atl::redis
