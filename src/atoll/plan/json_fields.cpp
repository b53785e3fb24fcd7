// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/json_fields.h"

#include <limits>
#include <utility>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr int kMaxLevels = 100;  // of anything that is read here

bool fits(const Json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

bool is_deeper(std::string_view text, int levels) noexcept {
  int depth = 0;
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted) {
      if (c == '\\') ++i;
      if (c == '"') is_quoted = false;
    } else if (c == '"') {
      is_quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Json parse_json(const std::string& text, const std::string& what) {
  if (is_deeper(text, kMaxLevels)) refuse(what + " is nested deeper than " + std::to_string(kMaxLevels) + " levels");
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) refuse(what + " is not JSON: " + text.substr(0, 80));
  return value;
}

Fields::Fields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
  if (!object_.is_object()) refuse(what_ + " is " + object_.dump().substr(0, 80) + ": give an object with keys");
}

void Fields::wrong(const std::string& key, const std::string& expected) const {
  refuse(what_ + " has \"" + key + "\": " + object_.at(key).dump().substr(0, 80) + ", which is not " + expected);
}

// A key with the value null counts as absent.
bool Fields::has(const std::string& key) {
  asked_.insert(key);
  return object_.contains(key) && !object_.at(key).is_null();
}

const Json& Fields::at(const std::string& key) {
  if (!has(key)) refuse(what_ + " lacks \"" + key + "\"");
  return object_.at(key);
}

double Fields::number(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_number()) wrong(key, "a number");
  return value.get<double>();
}

double Fields::number(const std::string& key, double fallback) { return has(key) ? number(key) : fallback; }

std::int64_t Fields::integer(const std::string& key) {
  const Json& value = at(key);
  if (!fits(value)) wrong(key, "an integer");
  return value.get<std::int64_t>();
}

std::int64_t Fields::integer(const std::string& key, std::int64_t fallback) {
  return has(key) ? integer(key) : fallback;
}

std::uint64_t Fields::unsigned_integer(const std::string& key, std::uint64_t fallback) {
  if (!has(key)) return fallback;
  const Json& value = at(key);
  if (!value.is_number_unsigned()) wrong(key, "an integer of at least 0");
  return value.get<std::uint64_t>();
}

bool Fields::boolean(const std::string& key, bool fallback) {
  if (!has(key)) return fallback;
  const Json& value = at(key);
  if (!value.is_boolean()) wrong(key, "true or false");
  return value.get<bool>();
}

std::string Fields::text(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_string()) wrong(key, "a string");
  return value.get<std::string>();
}

std::string Fields::text(const std::string& key, const std::string& fallback) {
  return has(key) ? text(key) : fallback;
}

const Json& Fields::list(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_array()) wrong(key, "a list");
  return value;
}

std::vector<double> Fields::numbers(const std::string& key) {
  std::vector<double> result;
  for (const Json& value : list(key)) {
    if (!value.is_number()) wrong(key, "a list of numbers");
    result.push_back(value.get<double>());
  }
  return result;
}

std::vector<std::int64_t> Fields::integers(const std::string& key) {
  std::vector<std::int64_t> result;
  for (const Json& value : list(key)) {
    if (!fits(value)) wrong(key, "a list of integers");
    result.push_back(value.get<std::int64_t>());
  }
  return result;
}

std::vector<std::pair<double, double>> Fields::pairs(const std::string& key) {
  std::vector<std::pair<double, double>> result;
  for (const Json& pair : list(key)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      wrong(key, "a list of pairs of numbers");
    }
    result.emplace_back(pair[0].get<double>(), pair[1].get<double>());
  }
  return result;
}

void Fields::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    std::string known;
    for (const std::string& name : asked_) known.append(known.empty() ? "" : ", ").append(name);
    refuse(std::string(what_).append(" has an unknown key \"").append(key).append("\"; known keys: ").append(known));
  }
}

}  // namespace atl::plan
