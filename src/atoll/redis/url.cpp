// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/url.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::redis {

namespace {

constexpr std::size_t kMaxUrl = 4096;
constexpr std::size_t kMaxShown = 100;
constexpr std::size_t kMaxJob = 200;
constexpr std::int64_t kMinExpiry = 60;
constexpr std::int64_t kMaxExpiry = 30 * 24 * 3600;
constexpr std::int64_t kMaxDatabase = 1'000'000;
constexpr std::int64_t kMaxRank = 100'000'000;
constexpr const char* kForm = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE][?job=NAME]";

[[noreturn]] void reject(const std::string& part, std::string_view value, const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument, "Redis URL: its " + part + " \"" + std::string(value.substr(0, kMaxShown)) +
                                               "\" cannot be used: " + expected);
}

[[noreturn]] void reject(const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, "Redis URL: " + why + "; expected " + kForm);
}

std::int64_t number(const std::string& part, std::string_view text, std::int64_t least, std::int64_t most) {
  const auto value = to_number<std::int64_t>(text);
  if (value && *value >= least && *value <= most) return *value;
  reject(part, text, "write a number from " + std::to_string(least) + " to " + std::to_string(most));
}

/// Decodes %41 to A. Its errors do not show the value, which may be a secret.
std::string decoded(const std::string& part, std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const auto digits = text.substr(i + 1, 2);
    unsigned code = 0;
    const char* const end = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16).ptr;
    if (end != digits.data() + 2) reject("its " + part + " has a % without two hexadecimal digits: write %25 for a %");
    result += static_cast<char>(code);
    i += 2;
  }
  return result;
}

/// Takes the text before `mark`, and drops the mark; takes all of it when there is no mark.
std::string_view take_until(std::string_view& rest, char mark) {
  const auto at = std::min(rest.find(mark), rest.size());
  const auto taken = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return taken;
}

void read_login(Url& url, std::string_view login) {
  const auto colon = login.find(':');
  url.user = decoded("user", login.substr(0, colon));
  if (colon != std::string_view::npos) url.password = decoded("password", login.substr(colon + 1));
  if (url.password.empty()) {
    reject("there is an @ but no password before it: leave the @ out, or set ATOLL_REDIS_PASSWORD_FILE");
  }
}

void read_place(Url& url, std::string_view place) {
  if (place.empty()) reject("it has no host");
  const auto bracket = place.rfind(']');
  const auto colon = place.rfind(':');
  const bool has_port = colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  const std::string text(place);
  try {
    url.place = transport::parse_host_port(has_port ? text : text + ":" + std::to_string(kDefaultPort));
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument, std::string("Redis URL: ") + error.what());
  }
  if (url.place.port == 0) reject("port", "0", "write the port on which the server listens, such as 6379");
}

void read_option(Url& url, const std::string& name, const std::string& value) {
  if (name == "job") {
    check_job_name(value);
    url.job = value;
  } else if (name == "expiry") {
    url.expiry = std::chrono::seconds(number("expiry", value, kMinExpiry, kMaxExpiry));
  } else if (name == "rank") {
    url.rank = static_cast<int>(number("rank", value, 0, kMaxRank));
  } else if (name == "world_size") {
    url.world_size = static_cast<int>(number("world_size", value, 1, kMaxRank));
  } else if (name == "ca") {
    url.authorities_file = value;
  } else if (name == "cert") {
    url.certificate_file = value;
  } else if (name == "key") {
    url.key_file = value;
  } else {
    reject("option", name, "there are job, expiry, rank, world_size, ca, cert and key");
  }
}

std::string environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

bool is_job_character(char character) {
  return character > ' ' && character < 0x7f && std::string_view("{}*?[]\\").find(character) == std::string_view::npos;
}

}  // namespace

void check_job_name(const std::string& job) {
  if (!job.empty() && job.size() <= kMaxJob && std::all_of(job.begin(), job.end(), is_job_character)) return;
  throw Error(ErrorKind::kInvalidArgument, "the job's name \"", job.substr(0, kMaxShown),
              "\" cannot be part of a Redis key: write 1 to ", kMaxJob,
              " printable characters without spaces and {}*?[]\\");
}

Url parse_url(const std::string& text) {
  if (text.size() > kMaxUrl) reject("it has more than " + std::to_string(kMaxUrl) + " characters");
  if (text.find('\0') != std::string::npos) reject("it has a zero byte");
  Url url;
  std::string_view rest = text;
  if (const auto scheme_end = rest.find("://"); scheme_end != std::string_view::npos) {
    const auto scheme = rest.substr(0, scheme_end);
    if (scheme != "redis" && scheme != "rediss") reject("it does not begin with redis://, or rediss:// for TLS");
    url.tls = scheme == "rediss";
    rest.remove_prefix(scheme_end + 3);
  }
  auto query_from = rest;
  const auto before_query = take_until(query_from, '?');
  auto path = before_query;
  auto authority = take_until(path, '/');
  if (query_from.find('@') != std::string_view::npos) {
    reject("there is an @ after a ?: write a ? in a password as %3F, and an @ in a job's name as %40");
  }
  if (const auto at = before_query.rfind('@'); at != std::string_view::npos) {  // a password may hold a slash
    read_login(url, before_query.substr(0, at));
    path = before_query.substr(at + 1);
    authority = take_until(path, '/');
  }
  read_place(url, authority);
  if (!path.empty()) url.database = static_cast<int>(number("database", path, 0, kMaxDatabase));
  while (!query_from.empty()) {
    auto value = take_until(query_from, '&');
    const auto name = take_until(value, '=');
    if (!name.empty()) read_option(url, decoded("option", name), decoded("option " + std::string(name), value));
  }
  if (url.certificate_file.empty() != url.key_file.empty())
    reject("cert= and key= go together: one of them is missing");
  return url;
}

Url with_environment(Url url) {
  const std::string file = environment("ATOLL_REDIS_PASSWORD_FILE");
  if (url.password.empty() && !file.empty()) {
    try {
      const auto bytes = transport::read_key_file(file, 1);
      url.password.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    } catch (const Error& error) {
      throw Error(error.kind(), std::string("ATOLL_REDIS_PASSWORD_FILE: ") + error.what());
    }
  }
  if (url.authorities_file.empty()) url.authorities_file = environment("ATOLL_REDIS_CA");
  if (url.certificate_file.empty()) {
    url.certificate_file = environment("ATOLL_REDIS_CERT");
    url.key_file = environment("ATOLL_REDIS_KEY");
    if (url.certificate_file.empty() != url.key_file.empty()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "ATOLL_REDIS_CERT and ATOLL_REDIS_KEY go together: set both of them, or none");
    }
  }
  return url;
}

std::string to_string(const Url& url) {
  return (url.tls ? "rediss://" : "redis://") + transport::to_string(url.place) + "/" + std::to_string(url.database);
}

}  // namespace atl::redis
