// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/attempt.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "atoll/plan/exchange.h"

namespace atl::infer {
namespace {

constexpr double kMostAhead = 1e-3;  // seconds of operators that a device may have before it: they cannot be taken back
constexpr double kMostBetweenWaits = 16;
constexpr std::chrono::microseconds kBetweenLooks{200};  // for the server's answer, while the device computes

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool holds(const std::vector<int>& tensors, int tensor) {
  return std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
}

}  // namespace

SplitRun::SplitRun(const Graph& graph, std::shared_ptr<const PlanSet> set, std::size_t plan, std::uint32_t number,
                   FrameSender& sender, LinkExchange::Rate rate, wire::Codec lossy)
    : set_(std::move(set)),
      split_(set_->splits.at(plan)),
      number_(number),
      arrivals_(graph, *set_->operators, split_->program),
      exchange_(graph, *set_->operators, sender, arrivals_, std::move(rate), lossy, true) {
  for (const Step& step : split_->program.steps) steps_.push_back({{step}});
}

void Attempt::Watched::send(int tensor, Region rows, HostBytes bytes) {
  inner.send(tensor, rows, std::move(bytes));
}

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
    : model_(model),
      run_(run),
      inference_(inference),
      rules_(rules),
      exchange_(run.exchange()),
      outputs_(outputs_of(model.graph())) {}

double Attempt::elapsed() const { return seconds_since(rules_.begin); }

// Asked before a step and, while it waits, again and again.
bool Attempt::may_go_on(std::size_t step, int asked) const {
  if (is_closed()) return false;
  const Step& next = run_.split().program.steps[step];
  if (next.kind == Step::Kind::kFree) return true;
  // What is there already is taken, however late it is.
  if (next.kind == Step::Kind::kReceive && asked == 0) return true;
  if (next.kind != Step::Kind::kReceive && rules_.hedge == Hedge::kAlways) return true;
  // The server's answer counts until the robot's own is there, also where that has to begin at once.
  if (next.kind == Step::Kind::kSend) return elapsed() < rules_.deadline;
  const Guard& guard = run_.split().guard;
  return elapsed() < guard.latest_start(rules_.deadline, step, rules_.margin, rules_.engine_seconds);
}

bool Attempt::follow() {
  const std::vector<Program>& steps = run_.steps();
  for (stopped_ = 0; stopped_ < steps.size(); ++stopped_) {
    int asked = 0;
    const Inference::GoOn go_on = [this, &asked] { return may_go_on(stopped_, asked++); };
    bool has_gone_on = false;
    try {
      has_gone_on = inference_.run(steps[stopped_], exchange_, go_on);
    } catch (const Error& error) {
      // What came from the server and is no tensor is the server's fault.
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

// What the outputs lack is all on its way.
bool Attempt::can_be_answered() const {
  const std::vector<std::vector<Region>> held = inference_.held();
  const std::vector<Step>& steps = run_.split().program.steps;
  return std::all_of(outputs_.begin(), outputs_.end(), [&](int tensor) {
    if (run_.operators().operator_of[at(tensor)] < 0) return true;
    std::vector<Region> lacks{rows_of(model_.graph(), run_.operators(), tensor)};
    for (const Region here : held[at(tensor)]) lacks = plan::without(lacks, here);
    for (std::size_t i = stopped_; i < steps.size(); ++i) {
      if (steps[i].kind == Step::Kind::kReceive && steps[i].index == tensor)
        lacks = plan::without(lacks, steps[i].rows);
    }
    return lacks.empty();
  });
}

Program Attempt::collecting() const {
  Program program;
  const std::vector<Step>& steps = run_.split().program.steps;
  for (std::size_t i = stopped_; i < steps.size(); ++i) {
    if (steps[i].kind == Step::Kind::kReceive && holds(outputs_, steps[i].index)) program.steps.push_back(steps[i]);
  }
  return program;
}

// Whether the server's answer is there before the device has done what it was given.
bool Attempt::is_answered_first() const {
  while (!model_.runner().wait_until(Deadline::after(kBetweenLooks))) {
    if (run_.arrivals().are_there(outputs_)) return true;
  }
  return false;
}

// The server's answer, on top of what was there `before`; false: it cannot be had, and all is as it was.
bool Attempt::take_answer(const Inference::Snapshot& before) {
  const Inference::Snapshot made = inference_.snapshot(outputs_);
  const int received = exchange_.received;
  inference_.put_back(before);
  try {
    inference_.run(collecting(), exchange_);
    return true;
  } catch (const Error&) {
    if (!exchange_.error) throw;
  }
  inference_.put_back(made);
  exchange_.received = received;
  return false;
}

void Attempt::finish_alone() {
  const Clock::time_point begin = Clock::now();
  const auto rest = [this] { return rest_of(model_.graph(), run_.operators(), inference_.held()); };
  const Inference::Snapshot before = inference_.snapshot(outputs_);
  const bool may_be_answered = can_be_answered();
  const double mean = run_.split().guard.rest_seconds(0) / static_cast<double>(model_.graph().nodes.size());
  const int between = static_cast<int>(std::clamp(kMostAhead / mean, 1.0, kMostBetweenWaits));
  int asked = 0;
  const Inference::GoOn go_on = [&] {
    if (is_closed()) return false;
    if (!may_be_answered) return true;
    if (run_.arrivals().are_there(outputs_)) return false;
    // A device that is behind what was called would compute on after the server's answer.
    return ++asked % between != 0 || !is_answered_first();
  };
  const bool is_made = inference_.run(rest(), no_exchange(), go_on);
  if (!is_made && is_closed()) TurnGate::refuse();
  if (may_be_answered && (!is_made || is_answered_first()) && take_answer(before)) return;
  if (!inference_.run(rest(), no_exchange(), [this] { return !is_closed(); })) TurnGate::refuse();
  model_.runner().wait();
  alone_seconds_ = seconds_since(begin);
  used_robot_ = true;
}

}  // namespace atl::infer
