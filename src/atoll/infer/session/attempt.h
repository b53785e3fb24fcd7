// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "atoll/infer/engine/caller_check.h"
#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/link/link_exchange.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/session/prepared_plans.h"
#include "atoll/infer/session/report.h"
#include "atoll/infer/session/turn_gate.h"

namespace atl::infer {

/// A plan that was sent to a server, with everything that is made once for all its inferences. Used by one inference at
/// a time.
class SplitRun {
 public:
  /// Borrows `graph` and `sender`. The server knows the plan by `number`.
  SplitRun(const Graph& graph, std::shared_ptr<const PreparedPlans> plans, std::size_t plan, std::uint32_t number,
           FrameSender& sender, LinkExchange::Rate rate, wire::Codec lossy);

  const PreparedPlan& prepared() const noexcept { return prepared_; }
  const Operators& operators() const noexcept { return plans_->profiled.operators; }
  std::uint32_t number() const noexcept { return number_; }
  Arrivals& arrivals() noexcept { return arrivals_; }
  LinkExchange& exchange() noexcept { return exchange_; }
  /// The program's steps, one by one.
  const std::vector<Program>& steps() const noexcept { return steps_; }

 private:
  std::shared_ptr<const PreparedPlans> plans_;
  const PreparedPlan& prepared_;  // one of them
  std::uint32_t number_;
  Arrivals arrivals_;
  LinkExchange exchange_;
  std::vector<Program> steps_;
};

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The rules by which an attempt gives up the server's answer. Seconds count from `begin`.
struct AttemptRules {
  Clock::time_point begin;
  Hedge hedge = Hedge::kDeadline;
  double deadline = 0;  ///< guard_deadline()
  double margin = 0;
  double engine_seconds = std::numeric_limits<double>::infinity();  ///< time of the robot's own engine
  const TurnGate* gate = nullptr;                                   ///< the attempt ends once it is closed
  CallerCheck* caller = nullptr;                                    ///< what it throws ends the attempt as well

  /// Returns whether the attempt must end. Call it often. Throws what the caller's check throws.
  bool is_over() const {
    if (caller != nullptr) (*caller)();
    return gate != nullptr && gate->is_closed();
  }
};

/// The robot's side of one split inference: runs its program as far as the guard and the link allow, and computes the
/// rest alone.
class Attempt {
 public:
  /// Borrows everything. The inference must have its inputs.
  Attempt(const LoadedModel& model, SplitRun& run, Inference& inference, const AttemptRules& rules);

  /// Runs the program from where it was stopped; false when it stops before its end. Throws what the runner throws, and
  /// Error(kAborted) once the gate is closed, as finish_alone() does.
  bool follow();
  /// Afterwards, computes what is left while the program waits; the program is resumed when the rows that it waits for
  /// have arrived. Whichever of the two finishes first ends the inference.
  void finish_alone();
  /// The inference that has finished.
  Inference& result() noexcept { return alone_ ? *alone_ : inference_; }
  /// Seconds that finish_alone() is predicted to take.
  double rest_seconds() const { return run_.prepared().guard.rest_seconds(stopped_); }

  bool was_stopped_by_guard() const noexcept { return by_guard_; }
  const std::optional<Error>& link_error() const noexcept { return exchange_.error; }
  /// Returns whether the server's rows (or the robot's computing) are part of the outputs.
  bool used_server() const noexcept { return exchange_.received > 0; }
  bool used_robot() const noexcept { return used_robot_; }
  Origin origin() const noexcept {
    if (!used_server()) return Origin::kLocal;
    return used_robot() ? Origin::kMixed : Origin::kServer;
  }
  double waited_seconds() const noexcept { return exchange_.waited; }
  /// The time that finish_alone() took if it finished without returning to the program; otherwise 0.
  double alone_seconds() const noexcept { return alone_seconds_; }

 private:
  // Separates errors of the link from errors of this device.
  struct Watched : Exchange {
    explicit Watched(LinkExchange& link) : inner(link) {}
    void send(int tensor, Region rows, HostBytes bytes) override;
    std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override;
    LinkExchange& inner;
    std::optional<Error> error;
    double waited = 0;
    int received = 0;
  };

  bool may_go_on(int asked);
  bool may_resume() const;
  bool may_resume_first() const;
  double seconds_twice() const;
  bool compute_alone();
  bool is_closed() const { return rules_.is_over(); }
  double elapsed() const;

  const LoadedModel& model_;
  SplitRun& run_;
  Inference& inference_;
  const AttemptRules rules_;
  Watched exchange_;
  std::optional<Inference> alone_;  // computes besides the robot's part of the program
  std::size_t stopped_ = 0;
  double extra_ = 0;      // seconds by which following the program has exceeded the rest
  int alone_until_ = -1;  // the last node that was computed alone
  bool by_guard_ = false;
  bool used_robot_ = false;
  double alone_seconds_ = 0;
};

}  // namespace atl::infer
