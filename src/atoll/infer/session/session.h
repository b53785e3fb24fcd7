// SPDX-License-Identifier: Apache-2.0
//
// The promises of sessions, each proven by the tests that docs/promises.md names:
// I-1: A divided answer deviates from the float64 model by at most twice what the undivided float32 model does.
// I-2: No fault of the link or the server changes an answer or, except with Hedge::kNever, makes an inference fail.
// I-3: When the server does not answer, this device computes the answer in time for a deadline that it can meet.
// I-4: A server that will never run the model is reported at once, with the reason; inferences are computed here.
// I-5: close() ends a running inference after its current operator, or at once if it waits for the server.
// I-6: Without a lossy codec of the caller's choice, tensors cross the link bit for bit.
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
  /// "auto", or a policy of plan::operator_policies(), whose plan is then used for every inference; it is made again
  /// for another connection, and when latency or the ratio of both rates has changed.
  std::string policy = "auto";
  std::uint64_t seed = 0;  ///< of random policies
  int chunks = 8;          ///< number of chunks in which inputs are streamed, if they are; 1 to 65536
  Hedge hedge = Hedge::kDeadline;
  std::optional<std::chrono::duration<double>> deadline{};  ///< of an inference without one of its own
  /// With Hedge::kNever: the time after which a server that has not answered is no longer waited for.
  std::chrono::duration<double> patience{30};
  std::optional<Profile> profile{};               ///< of this device; none: measured at the beginning
  std::chrono::duration<double> profile_time{1};  ///< for measuring it
  plan::RobotPower power{};
  /// kHalf, kInt8: for floating-point rows in both directions. kJpeg: for inputs that are images (wire/images.h).
  wire::Codec lossy = wire::Codec::kRaw;
  EngineOptions engine{};  ///< for a session with an engine of its own
  /// Called every 50 ms on the thread of a long call, including the constructor: between operators, and while it waits.
  /// What it throws ends the call and is thrown to its caller; the session stays usable.
  std::function<void()> check{};
  bool logs_refusals = true;  ///< warns once about each reason for which the server does not run the model
};

/// The result of an inference.
struct Outcome {
  std::vector<Value> values;       ///< the graph's outputs that are tensors, in order
  std::vector<HostBytes> outputs;  ///< the same in host memory, if inputs were
  Origin origin = Origin::kLocal;
  std::string plan;  ///< "local", "stream", ...
  /// The plan by which it was divided; null: nothing was divided.
  std::shared_ptr<const plan::OperatorPlan> division;
  std::shared_ptr<const plan::OperatorGraph> divided;  ///< the operators that the plan divides; null likewise
  double seconds = 0;                                  ///< from the call, or from `since`
  double predicted = 0;                                ///< when the plan was chosen
  double bound = 0;                                    ///< lower bound of any plan at the estimated rate; 0: not known
  std::uint64_t up_bytes = 0;                          ///< of rows, as they were sent
  std::uint64_t down_bytes = 0;
  RobotTimes times{};       ///< of the robot since its turn; before that it worked for another inference
  double joules = 0;        ///< of the robot in these times, estimated
  bool guard_used = false;  ///< the server's answer was given up, or raced
  bool missed = false;      ///< the deadline was missed
  /// Why the server does not run the model, or ended it during this inference or since the last one; empty: it did not.
  std::string refusal;
};

/// One model, divided between this robot and a server as suits each inference best, and computed here whenever the
/// server cannot help. An inference never fails because of the link or the server: it throws only what this device's
/// operators throw. Only with Hedge::kNever it throws Error(kRefused) if the server will never answer
/// (Refusal::is_final). If even the robot alone cannot meet a deadline, the inference is answered all the same, and
/// marked as missed.
///
/// Thread-safe. One inference runs at a time: a second caller waits for its turn, and its deadline runs in the
/// meantime. A process forked by this one cannot use the session, which belongs to its parent: calls throw
/// Error(kUnavailable), and the destructor does nothing there.
class Session {
 public:
  /// Loads the model, times its operators (profile_time) and starts to connect. Throws as LoadedModel, measure_profile
  /// and Client do, and Error(kInvalidArgument) for an unknown policy and for kJpeg if no input is an image. `engine`
  /// computes the whole model when this robot does so alone (EngineRuns, whose errors are thrown here too).
  Session(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
          std::shared_ptr<LocalEngine> engine = nullptr);
  /// close()
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Computes the outputs for these inputs, in the graph's order, row-major without gaps. The deadline counts from
  /// `since`, by default the time of the call; set it for inferences that have waited elsewhere. Throws
  /// Error(kInvalidArgument) for a wrong number or size of inputs and once the session is closed, and kAborted if it is
  /// closed during the call.
  Outcome run(std::span<const HostBytes> inputs, std::optional<std::chrono::duration<double>> deadline = {},
              std::optional<Clock::time_point> since = {});
  /// The same with tensors on the runner's device, of the graph's types; their content must not change until it
  /// returns.
  Outcome run_values(std::span<const Value> inputs, std::optional<std::chrono::duration<double>> deadline = {},
                     std::optional<Clock::time_point> since = {});

  const Graph& graph() const noexcept;
  SessionReport report() const;
  /// Waits until the server runs the model and knows its plans, at most until the deadline; returns whether it does.
  /// Need not be called. Throws Error(kRefused) as soon as it is known that it never will. Returns false at once
  /// without a server and after close().
  bool wait_until_ready(Deadline deadline) const;
  /// Why the server does not run the model; none if it does, or may still do so.
  std::optional<Refusal> refusal() const;

  /// Ends the session: the running inference stops after its current operator, or after the robot's own engine, and
  /// throws Error(kAborted), as do those that wait for their turn. Returns when they are over and the server has been
  /// told. At most this takes that operator and planning (a second for large models). A second call does nothing. Must
  /// not be called from inside an inference.
  void close();
  /// Returns whether this process was forked from the one that made the session.
  bool is_inherited() const noexcept;

 private:
  class Impl;
  Impl& own() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::infer
