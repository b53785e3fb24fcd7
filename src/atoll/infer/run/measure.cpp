// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/dims.h"
#include "atoll/infer/run/costs.h"
#include "atoll/plan/numbers.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kProgressPeriod{50};  // while the whole model is being timed

using plan::as_index;

HostBytes zeros(const Tensor& type) {
  constexpr std::size_t kAlignment = 64;
  const auto size = static_cast<std::size_t>(type.bytes());
  const auto owner = std::make_shared<std::vector<std::byte>>(size + kAlignment);
  const auto misfit = reinterpret_cast<std::uintptr_t>(owner->data()) % kAlignment;
  return {{owner->data() + (kAlignment - misfit) % kAlignment, size}, owner};
}

double lower_quartile(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 4);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

class Measuring {
 public:
  /// `stop` is called before each step of a round, `stop_whole` during a run of the whole model.
  Measuring(const LoadedModel& model, const Operators& operators, const std::function<bool()>& stop,
            const std::function<bool()>& stop_whole)
      : model_(model), operators_(operators), stop_(stop), stop_whole_(stop_whole), times_(operators.operators.size()) {
    for (const int input : model.graph().inputs) {
      const Tensor& type = model.graph().tensors[as_index(input)];
      inputs_.emplace_back(input, model.runner().from_host(type, zeros(type)));
    }
    Plan alone;  // all rows of all nodes, even unneeded ones: halves are measured with whole operands
    alone.shares = plan::everything_on(plan::Side::kRobot, operator_graph(model.graph(), operators, {}, {}));
    program_ = program_of(model.graph(), operators, alone, plan::Side::kRobot);
    operator_of_node_.assign(model.graph().nodes.size(), -1);
    for (std::size_t i = 0; i < operators.operators.size(); ++i) {
      const int node = operators.operators[i].node;
      if (node >= 0) operator_of_node_[as_index(node)] = static_cast<int>(i);
    }
  }

  // The steps of one round.
  std::size_t steps() const noexcept { return program_.steps.size(); }

  // Times all nodes one after the other, each with all and with half of its rows.
  void round(bool counts) {
    Inference inference = started();
    for (const Step& step : program_.steps) {
      if (stop_ && stop_()) end();
      if (step.kind != Step::Kind::kCompute) {
        inference.run({{step}}, no_exchange());
        continue;
      }
      const int index = operator_of_node_[as_index(step.index)];
      Times& times = times_[as_index(index)];
      const Operators::Operator& each = operators_.operators[as_index(index)];
      const std::int64_t half = each.rows / 2;
      if (each.state >= 0) {
        const double seconds = timed_half_of_sums(inference, each);
        if (counts) times.half.push_back(seconds);
      } else if (half > 0) {
        Inference part = with_operands(inference, index);
        const double seconds = timed(part, {Step::Kind::kCompute, step.index, {0, half}});
        if (counts) times.half.push_back(seconds);
      }
      const double seconds = timed(inference, step);
      if (counts) times.whole.push_back(seconds);
    }
  }

  void whole(bool counts) {
    Inference inference = started();
    model_.runner().wait();
    const Clock::time_point begin = Clock::now();
    const Inference::GoOn go_on = [this] { return !stop_whole_(); };
    if (!inference.run(program_, no_exchange(), stop_whole_ ? go_on : nullptr)) end();
    model_.runner().wait();
    if (counts) totals_.push_back(seconds_since(begin));
  }

  Profile profile() const {
    const Graph& graph = model_.graph();
    Profile profile;
    profile.device = model_.runner().device();
    for (const int input : graph.inputs) {
      if (operators_.dims[as_index(input)] < 0) continue;
      profile.input_tensor = input;
      profile.dim = operators_.dims[as_index(input)];
      break;
    }
    for (std::vector<double>* each : {&profile.fixed, &profile.per_row, &profile.whole}) {
      each->assign(graph.nodes.size(), 0);
    }
    double sum = 0;
    for (const Times& times : times_) sum += times.whole.empty() ? 0 : lower_quartile(times.whole);
    profile.total = lower_quartile(totals_);
    const double scale = sum > profile.total ? profile.total / sum : 1;
    for (std::size_t i = 0; i < times_.size(); ++i) {
      if (times_[i].whole.empty()) continue;
      const Operators::Operator& of = operators_.operators[i];
      fill(profile, as_index(of.node), of.state < 0 ? of.rows : operators_.states[as_index(of.state)].partial.rows,
           times_[i], scale);
    }
    return profile;
  }

 private:
  struct Times {
    std::vector<double> whole;
    std::vector<double> half;
  };

  [[noreturn]] static void end() { throw Error(ErrorKind::kAborted, "measuring a model was stopped"); }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Inference started() const {
    Inference inference(model_, operators_);
    for (const auto& [tensor, value] : inputs_) inference.set_input(tensor, value);
    return inference;
  }

  Inference with_operands(Inference& whole, int index) const {
    Inference part(model_, operators_);
    for (const int tensor : taken_by(model_.graph(), operators_, index)) part.set_input(tensor, whole.whole(tensor));
    return part;
  }

  // Times the state of half the rows and the result from the states of both halves, or half of the result's rows.
  double timed_half_of_sums(Inference& whole, const Operators::Operator& result) const {
    Inference part(model_, operators_);
    for (const int tensor : operands_of(model_.graph().nodes[as_index(result.node)])) {
      if (operators_.operator_of[as_index(tensor)] >= 0) part.set_input(tensor, whole.whole(tensor));
    }
    const std::int64_t rows = operators_.states[as_index(result.state)].partial.rows;
    part.run({{{Step::Kind::kState, result.node, {rows / 2, rows}}}}, no_exchange());
    const double seconds = timed(part, {Step::Kind::kState, result.node, {0, rows / 2}});
    const Region made{0, std::max<std::int64_t>(1, result.rows / 2)};
    return seconds + timed(part, {Step::Kind::kResult, result.node, made});
  }

  double timed(Inference& inference, const Step& step) const {
    const Program program{{step}};
    model_.runner().wait();
    const Clock::time_point begin = Clock::now();
    inference.run(program, no_exchange());
    model_.runner().wait();
    return seconds_since(begin);
  }

  // Fits a line through both times, without negative coefficients.
  static void fill(Profile& profile, std::size_t node, std::int64_t count, const Times& times, double scale) {
    const double whole = lower_quartile(times.whole) * scale;
    profile.whole[node] = whole;
    profile.fixed[node] = whole;
    if (times.half.empty()) return;
    const double half = lower_quartile(times.half) * scale;
    const auto rows = static_cast<double>(count);
    const std::int64_t more_rows = count - count / 2;
    const auto more = static_cast<double>(more_rows);
    profile.per_row[node] = std::clamp((whole - half) / more, 0.0, whole / rows);
    profile.fixed[node] = std::max(0.0, whole - profile.per_row[node] * rows);
  }

  const LoadedModel& model_;
  const Operators& operators_;
  const std::function<bool()>& stop_;
  const std::function<bool()>& stop_whole_;
  std::vector<std::pair<int, Value>> inputs_;
  Program program_;
  std::vector<int> operator_of_node_;
  std::vector<Times> times_;  // by operator
  std::vector<double> totals_;
};

}  // namespace

SplitDim usual_split(const Graph& graph) {
  SplitDim best;
  double most = 0;
  for (const int input : graph.inputs) {
    const Shape& shape = graph.tensors[as_index(input)].shape;
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      if (shape[as_index(dim)] < 2) continue;
      const std::vector<int> dims = choose_dims(graph, input, dim);
      double bytes = 0;
      for (const Node& node : graph.nodes) {
        for (const int tensor : node.outputs) {
          const Tensor& type = graph.tensors[as_index(tensor)];
          const int along = dims[as_index(tensor)];
          if (along >= 0 && type.shape[as_index(along)] > 1) bytes += static_cast<double>(type.bytes());
        }
      }
      if (bytes > most) {
        most = bytes;
        best = {input, dim};
      }
    }
  }
  return best;
}

Profile measure_profile(const LoadedModel& model, const Operators& operators, double seconds,
                        const std::function<bool()>& stop) {
  const Clock::time_point begin = Clock::now();
  Measuring measuring(model, operators, stop, stop);
  measuring.whole(false);
  measuring.round(false);
  do {
    measuring.whole(true);
    measuring.round(true);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return measuring.profile();
}

Profile measure_rounds(const LoadedModel& model, const Operators& operators, int rounds,
                       const std::function<bool(std::size_t done, std::size_t of)>& go_on) {
  if (rounds < 1) {
    throw Error(ErrorKind::kInvalidArgument, std::to_string(rounds) + " rounds of measuring: give at least 1");
  }
  std::size_t done = 0;
  std::size_t of = 0;
  const std::function<bool()> stop = [&] { return go_on && !go_on(done++, of); };
  Clock::time_point told = Clock::now();
  const std::function<bool()> stop_whole = [&] {
    if (!go_on || Clock::now() - told < kProgressPeriod) return false;
    told = Clock::now();
    return !go_on(done, of);
  };
  Measuring measuring(model, operators, stop, stop_whole);
  of = measuring.steps() * (static_cast<std::size_t>(rounds) + 1);
  measuring.whole(false);
  measuring.round(false);
  for (int i = 0; i < rounds; ++i) {
    measuring.whole(true);
    measuring.round(true);
  }
  if (go_on) go_on(of, of);
  return measuring.profile();
}

}  // namespace atl::infer
