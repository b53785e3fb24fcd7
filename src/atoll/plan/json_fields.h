// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atl::plan {

using Json = nlohmann::json;

/// Returns whether lists and objects in `text`, which should be JSON, are nested deeper than `levels`. Writing and
/// comparing values recurses, so text from outside is checked before it is parsed.
bool is_deeper(std::string_view text, int levels) noexcept;

/// Parses `text`. Throws Error(kInvalidArgument) that names `what` if it is not JSON or is nested deeper than 100
/// levels.
Json parse_json(const std::string& text, const std::string& what);

/// Reads a JSON object key by key. A missing key, a value of the wrong type and, in `done`, a key that was never read
/// are errors that name `what` and the key.
class Fields {
 public:
  Fields(const Json& object, std::string what);

  bool has(const std::string& key);
  const Json& at(const std::string& key);
  double number(const std::string& key);
  double number(const std::string& key, double fallback);
  std::int64_t integer(const std::string& key);
  std::int64_t integer(const std::string& key, std::int64_t fallback);
  std::uint64_t unsigned_integer(const std::string& key, std::uint64_t fallback);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& fallback);
  std::vector<double> numbers(const std::string& key);
  std::vector<std::int64_t> integers(const std::string& key);
  /// [[first, second], ...]
  std::vector<std::pair<double, double>> pairs(const std::string& key);
  /// The list of objects, or lists, under `key`.
  const Json& list(const std::string& key);
  void done() const;

 private:
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const;

  const Json& object_;
  std::string what_;
  std::set<std::string> asked_;
};

}  // namespace atl::plan
