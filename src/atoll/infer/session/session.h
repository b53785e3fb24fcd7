// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/bundle/bundle.h"
#include "atoll/infer/client/client.h"
#include "atoll/infer/engine/engine_runs.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/session/guard.h"
#include "atoll/infer/session/refusal.h"
#include "atoll/infer/session/report.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

struct SessionOptions {
  std::optional<ClientOptions> server{};  ///< none: everything is computed here
  /// "auto", or a policy of plan::operator_policies(), whose plan is then used for every inference; it is made anew for
  /// another connection, and where latency or the ratio of both rates has become another.
  std::string policy = "auto";
  std::uint64_t seed = 0;  ///< of policies that draw
  int chunks = 8;          ///< in which inputs are streamed, where they are; 1 to 65536
  Hedge hedge = Hedge::kDeadline;
  std::optional<std::chrono::duration<double>> deadline{};  ///< of an inference that brings none
  /// Kept with Hedge::kNever: a server that has not answered for so long is not waited for.
  std::chrono::duration<double> patience{30};
  std::optional<Profile> profile{};               ///< of this device; none: measured at the beginning
  std::chrono::duration<double> profile_time{1};  ///< for that
  plan::RobotPower power{};
  /// kHalf, kInt8: of floating-point rows in both directions. kJpeg: of inputs that are images (wire/images.h).
  wire::Codec lossy = wire::Codec::kRaw;
  EngineOptions engine{};  ///< for a session with an engine of its own
  /// Called on the thread of a long call, which making a session is, too, every 50 ms: between operators, and while it waits.
  /// What it throws ends the call and comes out of it; the session stays as it was.
  std::function<void()> check{};
  bool logs_refusals = true;  ///< warns once of each reason for which the server does not run the model
};

/// What an inference gave.
struct Outcome {
  std::vector<Value> values;       ///< the graph's outputs that are tensors, in order
  std::vector<HostBytes> outputs;  ///< the same in host memory, where inputs were
  Origin origin = Origin::kLocal;
  std::string plan;  ///< "local", "stream", ...
  /// Who was to compute what, as it was planned; null: nothing was divided.
  std::shared_ptr<const plan::OperatorPlan> division;
  std::shared_ptr<const plan::OperatorGraph> divided;  ///< the operators that it divides; null likewise
  double seconds = 0;                                  ///< from the call, or from `since`
  double predicted = 0;                                ///< when the plan was chosen
  double bound = 0;                                    ///< that no plan undercuts at the estimated rate; 0: not known
  std::uint64_t up_bytes = 0;                          ///< of rows, as they were sent
  std::uint64_t down_bytes = 0;
  RobotTimes times{};       ///< of the robot from its turn on: before that it worked for another inference
  double joules = 0;        ///< of the robot in these times, estimated
  bool guard_used = false;  ///< the server's answer was given up, or raced
  bool missed = false;      ///< the deadline
};

/// One model, divided between this robot and a server as fits each inference best, and computed here whenever the server cannot
/// help. An inference never fails because of the link or the server: it throws only what this device's operators
/// throw; but one of Hedge::kNever is Error(kRefused) where the server never answers (Refusal::is_final). A deadline that even the robot alone cannot keep is answered all the same, and marked.
///
/// Thread-safe. One inference runs at a time: a second caller waits for its turn, and its deadline goes on meanwhile, so frames
/// do not overlap. A process forked by this one cannot use the session, which belongs to its parent: calls are
/// Error(kUnavailable), and its end does nothing there.
class Session {
 public:
  /// Loads the model, times its operators (profile_time) and begins to connect. Errors as LoadedModel, measure_profile, Client and
  /// make_plan for a policy that is not known; Error(kInvalidArgument) for kJpeg where no input is an image. `engine` computes the
  /// whole model where this robot does so alone, as EngineRuns says, whose errors come out of here too.
  Session(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
          std::shared_ptr<LocalEngine> engine = nullptr);
  /// close()
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The outputs for these inputs, in the graph's order, row-major without gaps. The deadline counts from `since`, which is
  /// the time of the call unless it is given, for inferences that have waited elsewhere. Error(kInvalidArgument) for other
  /// counts or sizes and once the session is closed; kAborted where it is closed meanwhile.
  Outcome run(std::span<const HostBytes> inputs, std::optional<std::chrono::duration<double>> deadline = {},
              std::optional<Clock::time_point> since = {});
  /// The same with tensors on the runner's device, of the graph's types; their content must not change until it returns.
  Outcome run_values(std::span<const Value> inputs, std::optional<std::chrono::duration<double>> deadline = {},
                     std::optional<Clock::time_point> since = {});

  const Graph& graph() const noexcept;
  SessionReport report() const;
  /// Whether the server runs the model and knows its plans; waits for that until the deadline. Need not be called.
  /// Error(kRefused) as soon as it is known that it never does. False at once without a server, and once it is closed.
  bool wait_until_ready(Deadline deadline) const;
  /// Why the server does not run the model; none where it does, or may yet.
  std::optional<Refusal> refusal() const;

  /// Ends the session: the inference that runs stops behind the operator at hand, or behind the robot's own engine, and it
  /// and those that wait for their turn are Error(kAborted). Returns when they are over and the server has heard: later by
  /// that operator, planning (a second for large models) and a connection that is being made (`connect_timeout`) at the
  /// most. Again does nothing. Not to be called by what runs inside an inference.
  void close();
  /// Whether this process was forked by the session's own.
  bool is_inherited() const noexcept;

 private:
  class Impl;
  Impl& own() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::infer
