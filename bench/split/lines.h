// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/json/fields.h"
#include "atoll/plan/operators/trace.h"
#include "atoll/plan/text.h"

// The programs of this folder read and write a JSON object per line.
namespace atl::bench {

inline void say(const json::Json& value) { std::cout << value.dump() << std::endl; }

/// Reads the next line; returns an empty object at the end of input. Error(kInvalidArgument) if it is not JSON.
inline json::Json next_line(const std::string& what) {
  std::string line;
  if (!std::getline(std::cin, line)) return json::Json::object();
  return json::parse(line, what);
}

/// Converts seconds of the machine's monotonic clock, which all its processes share, to a time point.
inline Clock::time_point moment_of(double seconds) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

/// Reads {"bin_seconds", "up", "down"}, with rates in bytes per second; without "down" both directions have the same.
inline plan::Trace trace_of(const json::Json& value) {
  json::Fields fields(value, "the trace");
  const double bin_seconds = fields.number("bin_seconds");
  std::vector<double> up = fields.numbers("up");
  std::vector<double> down = fields.has("down") ? fields.numbers("down") : std::vector<double>{};
  fields.done();
  return {bin_seconds, std::move(up), std::move(down)};
}

}  // namespace atl::bench
