// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/operators/envelope.h"
#include "atoll/plan/operators/forecast.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/trace.h"

namespace atl::plan {

/// What a controller knows when an inference begins.
struct Moment {
  double now = 0;                  ///< seconds into the trace
  SeenRate last_bin;               ///< of the trace, upwards
  std::span<const SeenRate> seen;  ///< rates that messages upwards have had so far, in order of time
};

struct Choice {
  std::size_t plan = 0;
  double predicted = 0;  ///< seconds
};

/// Chooses one of the plans for each inference.
using Chooser = std::function<Choice(const Moment&)>;

struct ChooserOptions {
  std::string forecast = "neighbours";
  std::optional<double> quantile;   ///< decide by it instead of by the mean time
  bool sees_every_bin = false;      ///< the rate of the last bin is known even if nothing was sent in it
  double most_seconds = kInfinity;  ///< no plan counts as slower, because a guard answers then
};

/// Chooses by a forecast, from a table whose plans are those of the replay. The table and the past are borrowed.
Chooser choose_by_forecast(const PlanTable& table, const LinkPast& past, const ChooserOptions& options);
/// Chooses by the rate of the last bin: plan i + 1 from `rates[i]` on, plan 0 below all of them.
Chooser choose_by_rate(std::vector<double> rates, std::vector<double> predicted);
/// Chooses the plan that really is the fastest, because it knows the trace. All arguments are borrowed.
Chooser choose_by_oracle(const OperatorGraph& graph, const Trace& trace, const PlanTable& table);

struct ReplayOptions {
  double latency = 0;
  bool is_half_duplex = false;
  std::optional<double> deadline;  ///< of the guard; none: no guard
  double begin = 0;                ///< seconds into the trace
  double length = 0;               ///< seconds in which inferences begin; 0: one pass through the trace
  /// Seconds between starts; an inference waits for the answer before it, and then for the next multiple. 0: each
  /// begins with the answer before it.
  double period = 0;
  bool is_apart = false;  ///< inferences begin with every period, each as if alone on the link
};

/// One inference of a replay.
struct Served {
  double begin = 0;    ///< seconds into the trace
  double seconds = 0;  ///< to the first answer
  double predicted = 0;
  std::size_t plan = 0;
  bool is_local = false;    ///< local execution, started by the guard, gave the answer
  bool is_guarded = false;  ///< local execution was started
  double up_bytes = 0;      ///< until the answer
  double down_bytes = 0;
  double robot_busy = 0;  ///< seconds, including local execution even if its answer was not the first
  double server_busy = 0;
  double link_busy = 0;
  double joules = 0;  ///< of the robot
};

/// Replays inferences over a recorded link, one after the other. Messages are carried at the rates that the trace has
/// at that moment (simulate()), and a Guard watches if there is a deadline. Throws Error(kInvalidArgument) for an
/// inference that is never answered, a period of 0 with `is_apart`, more than a million inferences, and times that are
/// negative or infinite.
std::vector<Served> replay(const OperatorGraph& graph, const Trace& trace, const RobotPower& power,
                           std::span<const OperatorPlan> plans, const Chooser& choose, const ReplayOptions& options);

struct Spread {
  double mean = 0;
  double deviation = 0;
  double median = 0;
  double p95 = 0;
  double p99 = 0;
  double most = 0;
};
/// Each quantile is the smallest of the values that covers its share of them. All 0 for no values.
Spread spread_of(std::vector<double> values);

}  // namespace atl::plan
