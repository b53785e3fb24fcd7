// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl {

/// Returns the value of an environment variable; "" if it is not set.
inline std::string environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

/// Throws Error(kInvalidArgument) that names the variable, its value and what is wanted instead.
[[noreturn]] inline void reject_setting(const char* variable, const std::string& value, const std::string& wanted) {
  throw Error(ErrorKind::kInvalidArgument, std::string(variable) + "=\"" + value + "\": expected " + wanted);
}

/// Returns the number in an environment variable, `usual` if it is empty or not set. Throws as reject_setting for other
/// text, and for a number that is not valid.
template <typename Number, typename IsValid>
Number number_setting(const char* variable, Number usual, const IsValid& is_valid, const std::string& wanted) {
  const std::string value = environment(variable);
  if (value.empty()) return usual;
  const auto number = to_number<Number>(value);
  if (!number || !is_valid(*number)) reject_setting(variable, value, wanted);
  return *number;
}

/// The same for a number from `least` to `most`.
template <typename Number>
Number number_setting(const char* variable, Number usual, Number least, Number most, const std::string& wanted) {
  return number_setting(
      variable, usual, [&](Number number) { return number >= least && number <= most; }, wanted);
}

/// Returns which of `choices` an environment variable holds, from 1; 0 if it is empty or not set. Throws as
/// reject_setting for other text.
inline std::size_t choice_setting(const char* variable, std::initializer_list<std::string_view> choices,
                                  const std::string& wanted) {
  const std::string value = environment(variable);
  if (value.empty()) return 0;
  const auto* const found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end()) reject_setting(variable, value, wanted);
  return static_cast<std::size_t>(found - choices.begin()) + 1;
}

}  // namespace atl
