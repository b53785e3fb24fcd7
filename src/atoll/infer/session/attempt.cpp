// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/attempt.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace atl::infer {
namespace {

constexpr double kMaxAhead =
    1e-3;  // seconds of operators that may be queued on a device, where they cannot be withdrawn
constexpr double kMaxBetweenWaits = 16;
constexpr std::chrono::microseconds kComputePollPeriod{
    200};                            // for polling for the server's rows while the device computes
constexpr double kFreeShare = 0.01;  // of the model's time: how much following the plan may add to the rest

}  // namespace

SplitRun::SplitRun(const Graph& graph, std::shared_ptr<const PreparedPlans> plans, std::size_t plan,
                   std::uint32_t number, FrameSender& sender, LinkExchange::Rate rate, wire::Codec lossy)
    : plans_(std::move(plans)),
      prepared_(plans_->plans.at(plan).value()),
      number_(number),
      arrivals_(graph, operators(), prepared_.program),
      exchange_(graph, operators(), sender, arrivals_, std::move(rate), lossy, true) {
  for (const Step& step : prepared_.program.steps) steps_.push_back({{step}});
}

void Attempt::Watched::send(int tensor, Region rows, HostBytes bytes) { inner.send(tensor, rows, std::move(bytes)); }

std::optional<HostBytes> Attempt::Watched::receive(int tensor, Region rows, Deadline until) {
  const Clock::time_point begin = Clock::now();
  try {
    std::optional<HostBytes> bytes = inner.receive(tensor, rows, until);
    waited += seconds_since(begin);
    if (bytes) ++received;
    return bytes;
  } catch (const Error& thrown) {
    waited += seconds_since(begin);
    error = thrown;
    throw;
  }
}

Attempt::Attempt(const LoadedModel& model, SplitRun& run, Inference& inference, const AttemptRules& rules)
    : model_(model), run_(run), inference_(inference), rules_(rules), exchange_(run.exchange()) {}

double Attempt::elapsed() const { return seconds_since(rules_.begin); }

// Called before a step and repeatedly while it waits.
bool Attempt::may_go_on(int asked) {
  if (is_closed()) return false;
  const Step& next = run_.prepared().program.steps[stopped_];
  if (next.kind == Step::Kind::kFree) return true;
  // Rows that have arrived are taken, however late it is.
  if (next.kind == Step::Kind::kReceive && asked == 0) return true;
  if (next.kind != Step::Kind::kReceive && rules_.hedge == Hedge::kAlways) return true;
  // The server's answer is used until the robot has its own, even if computing that must begin at once.
  if (next.kind == Step::Kind::kSend) return elapsed() < rules_.deadline;
  const Guard& guard = run_.prepared().guard;
  const double latest = rules_.hedge == Hedge::kNever
                            ? rules_.deadline
                            : guard.latest_start(rules_.deadline, stopped_, rules_.margin, rules_.engine_seconds);
  if (elapsed() < latest) return true;
  if (next.kind == Step::Kind::kReceive || std::isfinite(rules_.engine_seconds)) return false;
  // It is too late to wait, but steps that the robot alone would need as well may still be computed.
  const double extra = guard.step_seconds(stopped_) + guard.rest_seconds(stopped_ + 1) - guard.rest_seconds(stopped_);
  if (extra_ + extra > kFreeShare * guard.rest_seconds(0)) return false;
  extra_ += std::max(extra, 0.0);
  return true;
}

bool Attempt::follow() {
  const std::vector<Program>& steps = run_.steps();
  for (; stopped_ < steps.size(); ++stopped_) {
    int asked = 0;
    const Inference::GoOn go_on = [this, &asked] { return may_go_on(asked++); };
    bool has_gone_on = false;
    try {
      has_gone_on = inference_.run(steps[stopped_], exchange_, go_on);
    } catch (const Error& error) {
      // Received bytes that are not a tensor are the server's fault.
      const bool is_received = steps[stopped_].steps.front().kind == Step::Kind::kReceive;
      if (is_received && !exchange_.error) exchange_.error = Error(ErrorKind::kProtocol, error.what());
      if (!exchange_.error) throw;
      return false;
    }
    if (!has_gone_on) {
      if (is_closed()) TurnGate::refuse();
      by_guard_ = true;
      return false;
    }
    used_robot_ = used_robot_ || computes(steps[stopped_].steps.front());
  }
  return true;
}

// Returns whether the rows that the program waits for have arrived, and computing its remaining steps wastes little of
// what has been computed alone.
bool Attempt::may_resume() const {
  const Step& next = run_.prepared().program.steps[stopped_];
  if (exchange_.error || next.kind != Step::Kind::kReceive || !run_.arrivals().are_there(next.index, next.rows)) {
    return false;
  }
  return extra_ + seconds_twice() <= kFreeShare * run_.prepared().guard.rest_seconds(0);
}

// The part of the program's remaining computing that has already been done alone and would be done twice.
double Attempt::seconds_twice() const {
  const std::vector<Step>& steps = run_.prepared().program.steps;
  double seconds = 0;
  for (std::size_t i = stopped_; i < steps.size(); ++i) {
    if (computes(steps[i]) && steps[i].index <= alone_until_) seconds += run_.prepared().guard.step_seconds(i);
  }
  return seconds;
}

// The same, polled until the device has finished its queued work.
bool Attempt::may_resume_first() const {
  while (!model_.runner().wait_until(Deadline::after(kComputePollPeriod))) {
    if (may_resume()) return true;
  }
  return false;
}

// Computes what is left alone, from what the program has made; false: the program may be resumed.
bool Attempt::compute_alone() {
  if (alone_) {
    alone_->add(inference_);
  } else {
    alone_.emplace(inference_);
  }
  const Program rest = rest_of(model_.graph(), run_.operators(), alone_->held());
  const double mean = run_.prepared().guard.rest_seconds(0) / static_cast<double>(model_.graph().nodes.size());
  const auto between = static_cast<std::size_t>(std::clamp(kMaxAhead / mean, 1.0, kMaxBetweenWaits));
  std::size_t asked = 0;  // before each step
  const Inference::GoOn go_on = [&] {
    if (is_closed() || may_resume()) return false;
    // A device with queued work would continue to compute after the server's rows have arrived.
    if (asked % between == between - 1 && may_resume_first()) return false;
    const Step& step = rest.steps[asked++];
    if (computes(step)) alone_until_ = std::max(alone_until_, step.index);
    return true;
  };
  const bool is_made = alone_->run(rest, no_exchange(), go_on);
  if (!is_made && is_closed()) TurnGate::refuse();
  return is_made && !may_resume_first();
}

void Attempt::finish_alone() {
  const Clock::time_point begin = Clock::now();
  bool is_interrupted = false;
  while (!compute_alone()) {
    is_interrupted = true;
    extra_ += seconds_twice();
    if (!follow()) continue;
    alone_.reset();
    return;
  }
  used_robot_ = true;
  if (!is_interrupted) alone_seconds_ = seconds_since(begin);
}

}  // namespace atl::infer
