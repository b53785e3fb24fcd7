// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstdio>
#include <functional>
#include <string>

#include "atoll/core/error.h"

namespace atl::plan {

[[noreturn]] inline void refuse(const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); }

/// Formats a number for messages: "0.25".
inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

/// Formats a share for messages: "12.3 %" for 0.123.
inline std::string percent(double share) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f %%", share * 100);
  return text;
}

/// "1 sample", "2 samples".
template <std::integral Count>
std::string counted(Count count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// "a, b, c": what `text` returns for each of the items.
template <class Items, class Text = std::identity>
std::string joined(const Items& items, const Text& text = {}, const char* separator = ", ") {
  std::string all;
  for (const auto& each : items) all.append(all.empty() ? "" : separator).append(std::invoke(text, each));
  return all;
}

/// Throws unless the value is finite and at least 0: "the cost's knee is -1: ...".
inline void require_amount(const std::string& name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse(name + " is " + number(value) + ": give a finite number of at least 0");
}

/// Throws unless the rate is finite and above 0.
inline void require_rate(const std::string& name, double rate) {
  if (std::isfinite(rate) && rate > 0) return;
  refuse(name + " is " + number(rate) + ": give a finite rate above 0");
}

}  // namespace atl::plan
