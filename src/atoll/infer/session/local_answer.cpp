// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/local_answer.h"

#include <chrono>
#include <limits>
#include <utility>

#include "atoll/infer/client/link_rates.h"
#include "atoll/infer/engine/caller_check.h"
#include "atoll/infer/run/measure.h"

namespace atl::infer {
namespace {

Profile measured(const LoadedModel& model, double limit, const std::function<void()>& check) {
  const SplitDim along = usual_split(model.graph());
  const auto stop = [caller = CallerCheck(check)]() mutable {
    caller();
    return false;
  };
  return measure_profile(model, operators_of(model.graph(), along.input_tensor, along.dim), limit, stop);
}

}  // namespace

void give_inputs(const Graph& graph, Inference& inference, std::span<const Value> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) inference.set_input(graph.inputs[i], inputs[i]);
}

std::vector<Value> outputs_from(const LoadedModel& model, Inference& inference) {
  std::vector<Value> values;
  for (const Argument& output : model.graph().outputs) {
    const auto* tensor = std::get_if<TensorId>(&output);
    if (tensor != nullptr) values.push_back(inference.whole(tensor->id));
  }
  return values;
}

LocalAnswer::LocalAnswer(const LoadedModel& model, std::shared_ptr<LocalEngine> engine,
                         const std::optional<Profile>& profile, double profile_seconds, EngineOptions engine_options,
                         const std::function<void()>& check)
    : model_(model),
      undivided_(operators_of(model.graph(), -1, -1)),
      profile_(profile ? *profile : measured(model, profile_seconds, check)) {
  const Graph& graph = model.graph();
  std::vector<std::vector<Region>> held(graph.tensors.size());
  for (const int input : graph.inputs) held[static_cast<std::size_t>(input)] = {rows_of(graph, undivided_, input)};
  program_ = rest_of(graph, undivided_, held);
  if (!engine) return;
  engine_options.check = check;
  const auto own = [this](std::span<const Value> inputs) { return by_operators(inputs, {}).value(); };
  engine_ = std::make_unique<EngineRuns>(std::move(engine), model_, own, profile_.seconds(), engine_options);
}

double LocalAnswer::predicted() const { return uses_engine() ? engine_->seconds() : profile_.seconds(); }

double LocalAnswer::engine_seconds() const {
  return uses_engine() ? engine_->seconds() : std::numeric_limits<double>::infinity();
}

double LocalAnswer::seconds() const {
  const std::lock_guard lock(mutex_);
  return predicted() * jitter_.ratio(seconds_of(Clock::now()));
}

double LocalAnswer::margin() const {
  const std::lock_guard lock(mutex_);
  return jitter_.margin(seconds_of(Clock::now()), predicted());
}

std::optional<std::vector<Value>> LocalAnswer::by_operators(std::span<const Value> inputs,
                                                            const Inference::GoOn& go_on) {
  Inference inference(model_, undivided_);
  give_inputs(model_.graph(), inference, inputs);
  if (!inference.run(program_, no_exchange(), go_on)) return std::nullopt;
  return outputs_from(model_, inference);
}

std::optional<std::vector<Value>> LocalAnswer::run(std::span<const Value> inputs, const Inference::GoOn& go_on) {
  const bool by_engine = uses_engine();  // checked once: a stalled engine may return during the run
  const double expected = by_engine ? engine_->seconds() : profile_.seconds();
  const Clock::time_point begin = Clock::now();
  std::optional<std::vector<Value>> values =
      by_engine ? engine_->run(inputs, [&] { static_cast<void>(go_on()); }) : std::nullopt;
  const bool is_as_expected = values.has_value() == by_engine;
  if (!values) values = by_operators(inputs, go_on);
  if (!values) return std::nullopt;
  while (!model_.runner().wait_until(Deadline::after(CallerCheck::kPeriod))) {
    if (!go_on()) return std::nullopt;
  }
  if (is_as_expected) took(expected, std::chrono::duration<double>(Clock::now() - begin).count());
  return values;
}

void LocalAnswer::took(double expected, double taken) {
  const std::lock_guard lock(mutex_);
  jitter_.add(seconds_of(Clock::now()), expected, taken);
}

}  // namespace atl::infer
