// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/wire/images.h"
#include "atoll/infer/wire/messages.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::infer {

void check_options(const SessionOptions& options) {
  if (options.chunks < 1 || options.chunks > static_cast<int>(wire::kMaxChunks)) {
    throw Error(ErrorKind::kInvalidArgument,
                "chunks is " + std::to_string(options.chunks) + ": give 1 to " + std::to_string(wire::kMaxChunks));
  }
  if (!(options.patience.count() >= 0)) {
    throw Error(ErrorKind::kInvalidArgument, "patience is " + std::to_string(options.patience.count()) +
                                                 ": give the seconds to wait for a silent server");
  }
  const std::vector<std::string> known = plan::operator_policies();
  if (std::find(known.begin(), known.end(), options.policy) == known.end()) {
    std::string names;
    for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
    throw Error(ErrorKind::kInvalidArgument,
                "the policy \"" + options.policy + "\" is not known: give one of " + names);
  }
  if (options.server) transport::parse_host_port(options.server->server);
}

SessionOptions checked_options(SessionOptions options, const Graph& graph) {
  check_options(options);
  check_lossy(graph, options.lossy);
  return options;
}

void check_count(const Graph& graph, std::size_t inputs) {
  if (inputs == graph.inputs.size()) return;
  throw Error(ErrorKind::kInvalidArgument, "the model has " + std::to_string(graph.inputs.size()) + " inputs, but " +
                                               std::to_string(inputs) + " were given");
}

std::optional<std::chrono::duration<double>> checked_deadline(std::optional<std::chrono::duration<double>> deadline) {
  if (!deadline || !std::isnan(deadline->count())) return deadline;
  throw Error(ErrorKind::kInvalidArgument, "the deadline is not a number: give seconds");
}

void check_lossy(const Graph& graph, wire::Codec lossy) {
  if (lossy != wire::Codec::kJpeg) return;
  std::string inputs;
  for (const int input : graph.inputs) {
    const Tensor& type = graph.tensors.at(static_cast<std::size_t>(input));
    if (wire::image_layout(type)) return;
    inputs += (inputs.empty() ? "" : ", ") + to_string(type);
  }
  throw Error(ErrorKind::kInvalidArgument, "lossy jpeg packs inputs that are images, " + std::string(wire::kImages) +
                                               ", but none of the model's inputs is one (" + inputs +
                                               "): give half or int8, or leave it out");
}

std::uint64_t microseconds(double seconds) {
  constexpr auto kMax = static_cast<double>(wire::kMaxMicroseconds);
  return static_cast<std::uint64_t>(std::clamp(seconds * 1e6, 1.0, kMax));
}

void fill(SessionReport& report, const Outcome& last) {
  report.plan = last.plan;
  report.predicted = last.predicted;
  report.bound = last.bound;
  report.gap = last.bound > 0 ? last.predicted / last.bound - 1 : 0;
}

InferenceRecord with_outcome(InferenceRecord record, const Outcome& outcome) {
  record.seconds = outcome.seconds;
  record.origin = outcome.origin;
  record.guard_used = outcome.guard_used;
  record.missed = outcome.missed;
  record.up_bytes = outcome.up_bytes;
  record.down_bytes = outcome.down_bytes;
  record.joules = outcome.joules;
  record.times = outcome.times;
  return record;
}

Planner::Options planner_options(const SessionOptions& options) {
  Planner::Options made;
  made.plans.policy = options.policy;
  made.plans.operators.seed = options.seed;
  made.plans.operators.chunks = options.chunks;
  if (options.deadline) made.plans.operators.deadline = options.deadline->count();
  made.plans.power = options.power;
  made.lossy = options.lossy;
  return made;
}

}  // namespace atl::infer
