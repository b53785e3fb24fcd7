// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/json/parse.h"

namespace atl::json {

/// Throws Error(kind): "`where` is `value`, which is not `wanted`", with the beginning of the value.
[[noreturn]] void refuse(const Json& value, const std::string& where, const std::string& wanted,
                         ErrorKind kind = ErrorKind::kInvalidArgument);

/// Reads a JSON object key by key. A missing key, a value of the wrong type and, in `done`, a key that was never read
/// are errors of `kind` that name `what` and the key. The object must outlive this.
class Fields {
 public:
  Fields(const Json& object, std::string what, ErrorKind kind = ErrorKind::kInvalidArgument);

  const std::string& what() const noexcept { return what_; }
  /// Names the value under `key` in messages: `the plan's "batch"`.
  std::string name_of(const std::string& key) const { return what_ + "'s \"" + key + "\""; }

  /// Returns the value under `key`, which may be null; nullptr: there is none.
  const Json* find(const std::string& key);
  /// Whether there is a value other than null. Where a fallback is given, null counts as absent.
  bool has(const std::string& key);
  const Json& at(const std::string& key);
  double number(const std::string& key);
  double number(const std::string& key, double fallback);
  std::int64_t integer(const std::string& key);
  std::int64_t integer(const std::string& key, std::int64_t fallback);
  /// The same for values from `least` to `most`.
  std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most);
  std::uint64_t unsigned_integer(const std::string& key, std::uint64_t fallback);
  bool boolean(const std::string& key);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& fallback);
  std::vector<double> numbers(const std::string& key);
  std::vector<std::int64_t> integers(const std::string& key);
  /// [[first, second], ...]
  std::vector<std::pair<double, double>> pairs(const std::string& key);
  /// The list under `key`, which has at most `most` entries.
  const Json& list(const std::string& key, std::size_t most = std::numeric_limits<std::size_t>::max());
  void done() const;

 private:
  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const;

  const Json& object_;
  std::string what_;
  ErrorKind kind_;
  std::set<std::string> asked_;
};

}  // namespace atl::json
