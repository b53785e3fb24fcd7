// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "atoll/plan/batches/adapter.h"
#include "atoll/plan/batches/membership.h"
#include "tests/fuzz/refusals.h"

// What ranks report of themselves as JSON, and how the planner reads it: rejected by name, or read.
namespace atl::fuzz {

/// Checks that a cost is written as it was read, and predicts times.
inline bool cost(const std::string& text) {
  return is_read(ErrorKind::kInvalidArgument, [&] {
    const auto cost = plan::Cost::from_json(text);
    if (plan::Cost::from_json(cost.to_json()) != cost) std::abort();
    double before = 0;
    for (const std::int64_t batch : {0, 1, 7, 4096, 1'000'000'000}) {
      const double seconds = cost.seconds(batch);
      if (std::isnan(seconds) || seconds < before) std::abort();
      before = seconds;
    }
  });
}

/// Checks that a division keeps to its total, and that a planned one can be explained as JSON.
inline bool request(const std::string& text) {
  return is_read(ErrorKind::kInvalidArgument, [&] {
    auto request = plan::Request::from_json(text);
    request.rounds = std::min(request.rounds, 16);  // this rank's own setting, which takes as long as it states
    if (request.ranks.size() > 16) return;
    const auto divided = plan::plan_batches(request);
    if (divided.batches.size() != request.ranks.size()) std::abort();
    for (const std::int64_t batch : divided.batches) {
      if (batch < 0) std::abort();
    }
    static_cast<void>(divided.to_json());
  });
}

/// Windows of two ranks, and the options of the adapter that takes them.
inline bool adaptation(const std::string& text) {
  plan::Request two;
  two.batch = 64;
  two.ranks.resize(2);
  two.ranks[0].cost = plan::Cost::affine(0.01, 0.001);
  two.ranks[1].cost = plan::Cost::affine(0.02, 0.004);
  const bool is_window = is_read(ErrorKind::kInvalidArgument, [&] {
    const auto window = plan::Window::from_json(text);
    plan::Adapter adapter(two);
    for (int i = 0; i < 3; ++i) static_cast<void>(adapter.observe(window).to_json());
  });
  const bool is_options = is_read(ErrorKind::kInvalidArgument, [&] {
    plan::Adapter adapter(two, plan::AdapterOptions::from_json(text));
    plan::Window window;
    window.ranks = {{0.1, 32, {}}, {0.4, 32, {}}};
    for (window.step = 1; window.step < 4; ++window.step) static_cast<void>(adapter.observe(window).to_json());
  });
  return is_window || is_options;
}

/// Returns whether the text was one of these.
inline bool plan_requests(const std::string& text) {
  if (text.size() > 4096) return false;
  const bool is_cost = cost(text);
  const bool is_request = request(text);
  const bool is_adaptation = adaptation(text);
  const bool is_membership =
      is_read(ErrorKind::kInvalidArgument, [&] { static_cast<void>(plan::membership_from_json(text).to_json()); });
  return is_cost || is_request || is_adaptation || is_membership;
}

}  // namespace atl::fuzz
