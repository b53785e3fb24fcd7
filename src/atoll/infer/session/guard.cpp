// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/guard.h"

namespace atl::infer {
namespace {

constexpr std::size_t kRatios = 128;
constexpr double kMinMargin = 5e-4;
constexpr double kUnknownShare = 0.1;
constexpr double kUnknownWeight = 0.5;  // relative to a ratio that is measured now
constexpr double kRatioMemory = 30;     // seconds
constexpr double kNotKnown = -1;
constexpr int kBetweenPasses = 16;  // steps that compute

using plan::as_index;

// Tracks the rows that are held while a program runs, and computes the cost of the rest.
class Holding {
 public:
  Holding(const Graph& graph, const Operators& operators, const plan::OperatorGraph& lowered)
      : graph_(graph),
        operators_(operators),
        lowered_(lowered),
        held_(operators.dims.size()),
        taken_(taken_by_all(graph, operators)) {
    for (const int input : graph.inputs) held_[as_index(input)] = {rows_of(graph, operators, input)};
    node_operators_.assign(graph.nodes.size(), -1);
    for (std::size_t i = 0; i < operators.operators.size(); ++i) {
      const int node = operators.operators[i].node;
      if (node >= 0) node_operators_[as_index(node)] = static_cast<int>(i);
    }
  }

  double seconds_of(const Step& step) const {
    if (!computes(step)) return 0;
    const int index = operator_of(step);
    double seconds = lowered_.operators[as_index(index)].robot.seconds(step.rows.size());
    if (step.kind == Step::Kind::kCompute &&
        operators_.operators[as_index(index)].state >= 0) {  // states and result at once
      const plan::Operator& states = lowered_.operators[as_index(index - 1)];
      seconds += states.robot.seconds(states.rows);
    }
    return seconds;
  }

  void apply(const Step& step) {
    switch (step.kind) {
      case Step::Kind::kCompute:
      case Step::Kind::kState:
      case Step::Kind::kResult:
        for (const int tensor : operators_.operators[as_index(operator_of(step))].makes) {
          held_[as_index(tensor)].push_back(step.rows);
        }
        break;
      case Step::Kind::kReceive: held_[as_index(step.index)].push_back(step.rows); break;
      case Step::Kind::kFree: held_[as_index(step.index)].clear(); break;
      case Step::Kind::kSend: break;
    }
  }

  double rest() const {
    const std::vector<std::vector<Region>> made = rows_to_make(graph_, operators_, lowered_, taken_, held_);
    double seconds = 0;
    for (std::size_t i = made.size(); i-- > 0;) {
      for (const Region rows : made[i]) seconds += lowered_.operators[i].robot.seconds(rows.size());
    }
    return seconds;
  }

 private:
  // A node with two operators is represented by its result, which follows its states.
  int operator_of(const Step& step) const {
    return node_operators_[as_index(step.index)] - (step.kind == Step::Kind::kState ? 1 : 0);
  }

  const Graph& graph_;
  const Operators& operators_;
  const plan::OperatorGraph& lowered_;
  std::vector<std::vector<Region>> held_;      // by tensor
  const std::vector<std::vector<int>> taken_;  // by operator
  std::vector<int> node_operators_;            // by node
};

}  // namespace

Guard::Guard(const Graph& graph, const Operators& operators, const plan::OperatorGraph& lowered, const Program& robot) {
  Holding holding(graph, operators, lowered);
  rest_.assign(robot.steps.size() + 1, kNotKnown);
  int computed = 0;  // steps
  for (std::size_t i = 0; i < robot.steps.size(); ++i) {
    const Step& step = robot.steps[i];
    step_.push_back(holding.seconds_of(step));
    const bool passes = computes(step) && computed++ % kBetweenPasses == 0;
    if (step.kind == Step::Kind::kReceive || passes) rest_[i] = holding.rest();
    holding.apply(step);
  }
  rest_.back() = holding.rest();
  // A step that has not been done can be done alone, and a tensor that has not been freed only helps.
  for (std::size_t i = robot.steps.size(); i-- > 0;) {
    if (rest_[i] == kNotKnown) rest_[i] = step_[i] + rest_[i + 1];
  }
}

double Guard::latest_start(double deadline, std::size_t step, double margin, double whole) const {
  const double after = step_.at(step) > 0 ? step_[step] + std::min(rest_[step + 1], whole) : 0;
  return deadline - margin - std::max(std::min(rest_.at(step), whole), after);
}

void Jitter::add(double now, double predicted, double took) {
  if (predicted <= 0) return;
  seen_.push_back({now, took / predicted});
  if (seen_.size() > kRatios) seen_.pop_front();
}

double Jitter::margin(double now, double predicted) const {
  const double unknown = kUnknownShare / (1 + 2 * static_cast<double>(seen_.size()));
  return std::max(kMinMargin, (quantile(now, 0.95, 1 + unknown) - 1) * predicted);
}

double Jitter::ratio(double now) const { return quantile(now, 0.5, 1); }

// A quantile of the weighted ratios, one of which is `unknown`.
double Jitter::quantile(double now, double share, double unknown) const {
  std::vector<std::pair<double, double>> weighted{{unknown, kUnknownWeight}};
  double total = kUnknownWeight;
  for (const Seen& each : seen_) {
    weighted.emplace_back(each.ratio, std::exp(-std::max(0.0, now - each.when) / kRatioMemory));
    total += weighted.back().second;
  }
  std::sort(weighted.begin(), weighted.end());
  double below = 0;
  for (const auto& [ratio, weight] : weighted) {
    below += weight;
    if (below >= share * total) return ratio;
  }
  return weighted.back().first;
}

Hedge hedge_of(const std::string& name) {
  for (const Hedge hedge : {Hedge::kAlways, Hedge::kDeadline, Hedge::kNever}) {
    if (name == to_string(hedge)) return hedge;
  }
  throw Error(ErrorKind::kInvalidArgument, "hedge \"" + name + "\" is not known: give always, deadline or never");
}

const char* to_string(Hedge hedge) noexcept {
  switch (hedge) {
    case Hedge::kAlways: return "always";
    case Hedge::kDeadline: return "deadline";
    case Hedge::kNever: return "never";
  }
  return "?";
}

double guard_deadline(Hedge hedge, std::optional<double> deadline, double local, double margin, double patience) {
  if (hedge == Hedge::kAlways) return 0;
  if (hedge == Hedge::kNever) return patience;
  return plan::guarded_deadline(deadline, local + margin);
}

}  // namespace atl::infer
