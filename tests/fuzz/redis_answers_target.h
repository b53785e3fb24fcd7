// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/redis/job_store.h"
#include "atoll/redis/membership.h"
#include "tests/support/redis_answers.h"

namespace atl::fuzz {

/// Replies of all kinds, as the input describes; after the last one the server has lost everything.
class GeneratedReplies {
 public:
  explicit GeneratedReplies(std::vector<std::byte> bytes) : bytes_(std::move(bytes)), reader_(bytes_, "replies") {}
  GeneratedReplies(const GeneratedReplies&) = delete;
  GeneratedReplies& operator=(const GeneratedReplies&) = delete;

  std::string next() {
    try {
      return reply(0);
    } catch (const Error&) {  // the end of the input
      return "-ATOLLGONE\r\n";
    }
  }

 private:
  std::string reply(int depth) {
    static constexpr std::array kErrors{"ATOLLGONE", "ATOLLANEW", "ATOLLSTALE", "ATOLLLATE", "NOSCRIPT", "ERR no"};
    static constexpr std::array kTexts{"0", "ok", "taken", "size", "9223372036854775807", "-1", "1764000000", ""};
    const auto what = reader_.integer<std::uint8_t>();
    const auto more = what / 8U;
    switch (what % 8) {
      case 0: return "$-1\r\n";
      case 1: return bulk(kTexts[more % kTexts.size()]);
      case 2: return ":" + std::to_string(static_cast<std::int64_t>(reader_.integer<std::uint64_t>())) + "\r\n";
      case 3: return ":" + std::to_string(more) + "\r\n";
      case 4: return std::string("-") + kErrors[more % kErrors.size()] + "\r\n";
      case 5: return bulk(reader_.string(64));
      default: break;
    }
    if (depth == 3) return "*0\r\n";
    const auto count = what % 8 == 6 ? 2 : more;
    std::string all = "*" + std::to_string(count) + "\r\n";
    for (unsigned i = 0; i < count; ++i) all += reply(depth + 1);
    return all;
  }

  static std::string bulk(const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  }

  const std::vector<std::byte> bytes_;
  ByteReader reader_;
};

/// A server that gives arbitrary replies, and a process that has joined a job there.
struct ArbitraryServer {
  static ArbitraryServer& get() {
    static ArbitraryServer server;
    return server;
  }

  static constexpr redis::LifeSigns kMute{std::chrono::hours(1), std::chrono::hours(1)};

  test::RedisAnswers answers;
  std::shared_ptr<redis::Membership> member = [this] {
    answers.set([](const redis::Reply&) { return "*2\r\n$2\r\nok\r\n$1\r\n7\r\n"; });
    return std::make_shared<redis::Membership>(answers.url("job=j"), kMute, Deadline::after(std::chrono::minutes(1)));
  }();
};

inline void call_once(redis::JobStore& store, unsigned what) {
  const Deadline now = Deadline::after(std::chrono::seconds(0));
  switch (what % 16) {
    case 0: store.set("k", "v", now); break;
    case 1: store.multi_set({{"a", "1"}, {"b", "2"}}, now); break;
    case 2: store.get("k", now); break;
    case 3:
      if (store.multi_get({"a", "b", "c"}, now).size() != 3) std::abort();
      break;
    case 4: store.wait({"a", "b"}, now); break;
    case 5: store.has({"a", "b"}, now); break;
    case 6: store.add("k", 1, now); break;
    case 7: store.compare_set("k", "v", "w", now); break;
    case 8: store.append("k", "v", now); break;
    case 9: store.remove("k", now); break;
    case 10: store.count(now); break;
    case 11: store.list(now); break;
    case 12: store.push("q", "v", now); break;
    case 13: store.pop("q", now); break;
    case 14: store.length("q", now); break;
    default: store.publish(0, "{}", now);
  }
}

/// How a process handles the replies of a Redis server: the first byte chooses the caller and its request; each error
/// blames the server, or names what is missing. Returns whether it ended without an error.
inline bool redis_answers(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > 1024) return false;
  auto& server = ArbitraryServer::get();
  const auto what = std::to_integer<unsigned>(bytes.front());
  const auto rest = bytes.subspan(1);
  const auto replies = std::make_shared<GeneratedReplies>(std::vector<std::byte>(rest.begin(), rest.end()));
  server.answers.set([replies](const redis::Reply&) { return replies->next(); });
  const Deadline soon = Deadline::after(std::chrono::milliseconds(100));
  bool is_well = false;
  try {
    if (what % 4 == 0) {
      for (const auto& job : redis::list_jobs(server.answers.url((what & 4U) != 0 ? "job=j" : ""),
                                              Deadline::after(std::chrono::minutes(1)))) {
        if (job.alive < 0 || job.world_size < 0) std::abort();
      }
    } else if (what % 4 == 1) {
      const redis::Membership member(server.answers.url((what & 4U) != 0 ? "job=k" : "job=k&rank=0&world_size=2"),
                                     ArbitraryServer::kMute, soon);
    } else {
      redis::JobStore store(server.member);
      call_once(store, what / 4);
    }
    is_well = true;
  } catch (const Error& error) {
    const auto kind = error.kind();
    const bool is_known = kind == ErrorKind::kProtocol || kind == ErrorKind::kStore || kind == ErrorKind::kTimeout ||
                          kind == ErrorKind::kInvalidArgument;
    if (!is_known) std::abort();
  }
  server.answers.set(nullptr);
  return is_well;
}

}  // namespace atl::fuzz
