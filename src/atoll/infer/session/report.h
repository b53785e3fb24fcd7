// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "atoll/infer/client/client.h"
#include "atoll/infer/client/estimator.h"
#include "atoll/infer/engine/engine_runs.h"
#include "atoll/infer/wire/codecs.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// The place where an answer was computed.
enum class Origin { kLocal, kServer, kMixed };
const char* to_string(Origin origin) noexcept;

/// The seconds that a robot spent on an inference. Computing and waiting exclude each other; its radio works alongside
/// both.
struct RobotTimes {
  double computing = 0;
  double waiting = 0;    ///< for rows, and for the server to end its last inference
  double sending = 0;    ///< the time of the bytes at the estimated rate of their direction
  double receiving = 0;  ///< likewise
};

/// The times of an inference of `seconds` in which the robot waited for `waited` and sent and received these bytes.
RobotTimes robot_times(double seconds, double waited, std::uint64_t up_bytes, std::uint64_t down_bytes,
                       const plan::LinkCost& link) noexcept;

/// The energy that the robot uses in these times.
double joules_of(const plan::RobotPower& power, const RobotTimes& times) noexcept;

/// A report on a session, in seconds, bytes and joules; statistics of inferences cover the last thousand.
struct SessionReport {
  std::string policy;
  std::string plan;      ///< of the last inference: "local", "stream", ...
  double predicted = 0;  ///< seconds of the last inference
  double bound = 0;      ///< lower bound of any plan at the rate of that time; 0: not known
  double gap = 0;        ///< the share by which `predicted` exceeds the bound
  double local_seconds = 0;
  std::vector<std::string> plans;  ///< all available ones
  std::string robot;               ///< its device
  std::string server;              ///< its device; empty: never ready

  std::uint64_t inferences = 0;
  std::array<std::uint64_t, 3> origins{};  ///< by Origin
  std::uint64_t guarded = 0;               ///< inferences in which the guard stopped the split
  std::uint64_t missed = 0;                ///< missed deadlines
  std::uint64_t link_losses = 0;           ///< during inferences
  std::vector<double> latencies;           ///< the last hundred, in order
  double mean = 0;
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
  double worst = 0;
  std::uint64_t up_bytes = 0;  ///< of all inferences, as sent
  std::uint64_t down_bytes = 0;
  double joules = 0;  ///< of the robot, estimated, of all inferences
  double mean_joules = 0;
  RobotTimes times;           ///< of all inferences
  double server_compute = 0;  ///< seconds of the last inference there
  double server_waited = 0;   ///< for its turn
  double expected_wait = 0;   ///< seconds that the next inference would wait there, as plans assume
  std::string planning;       ///< why no plan can be used; empty if one can, or before the first try

  LinkStatus link;
  double up_rate = 0;  ///< bytes per second, estimated
  double down_rate = 0;
  double latency = 0;  ///< of a message
  BandwidthEstimate::ForecastError forecast;

  wire::Codec lossy = wire::Codec::kRaw;  ///< as requested
  std::uint64_t losses = 0;               ///< inferences in which the loss of what was sent up was measured
  wire::Loss largest_loss;                ///< of those
  double mean_loss = 0;                   ///< the mean of their means

  EngineReport engine;

  /// One JSON object with these names.
  std::string json() const;
};

/// Sets what the server reported with its last answer, or what the client knows of the link.
void fill(SessionReport& report, const wire::Done& done);
void fill(SessionReport& report, const Client& client);

/// One inference, for the statistics.
struct InferenceRecord {
  double seconds = 0;
  Origin origin = Origin::kLocal;
  bool guard_used = false;
  bool missed = false;
  bool link_lost = false;
  std::uint64_t up_bytes = 0;
  std::uint64_t down_bytes = 0;
  double joules = 0;
  RobotTimes times{};
  std::optional<wire::Loss> loss{};
};

/// Counts inferences. One thread at a time.
class Statistics {
 public:
  void add(const InferenceRecord& record);
  void fill(SessionReport& report) const;

 private:
  SessionReport counts_;
  std::deque<double> latencies_;
};

}  // namespace atl::infer
