// SPDX-License-Identifier: Apache-2.0
#include "atoll/json/parse.h"

#include <set>
#include <vector>

namespace atl::json {
namespace {

// Returns whether lists and objects in `text`, which should be JSON, are nested deeper than `levels`.
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

// Parses `text` and sets `twice` to a key that an object has twice. The result is discarded if it is not JSON.
Json parse_unique(std::string_view text, std::string& twice) {
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open.back().insert(key).second) twice = key;
    }
    return true;
  };
  return Json::parse(text, watch, false);
}

}  // namespace

Json parse(std::string_view text, const std::string& what, const Rules& rules) {
  if (is_deeper(text, rules.levels)) throw Error(rules.kind, what, " is nested deeper than ", rules.levels, " levels");
  std::string twice;
  Json value = rules.has_unique_keys ? parse_unique(text, twice) : Json::parse(text, nullptr, false);
  if (value.is_discarded()) throw Error(rules.kind, what, " is not JSON: ", text.substr(0, kShownBytes));
  if (!twice.empty()) {
    const std::string key = twice.substr(0, kShownBytes);
    throw Error(rules.kind, what + " has the key \"" + key + "\" twice in one object: keep one of the two");
  }
  return value;
}

}  // namespace atl::json
