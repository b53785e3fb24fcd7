// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/engine/engine_runs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/core/log.h"
#include "atoll/infer/engine/engine_check.h"
#include "atoll/plan/text.h"

namespace atl::infer {
namespace {

constexpr int kMaxFailures = 3;   // in a row
constexpr double kPatience = 3;   // of its measured time
constexpr double kWakeUp = 0.05;  // seconds by which a busy machine may delay the answer
constexpr std::uint64_t kSeed = 1;

}  // namespace

EngineRuns::EngineRuns(std::shared_ptr<LocalEngine> engine, const LoadedModel& model, const Own& own,
                       double own_seconds, const EngineOptions& options)
    : model_(model), thread_(std::move(engine)) {
  const Graph& graph = model_.graph();
  if (!options.example.empty()) {
    const std::vector<Value> inputs = inputs_of(options.example);
    compare(inputs, own(inputs), options);
  }
  std::vector<Value> inputs;
  std::vector<Value> expected;
  try {
    inputs = inputs_of(made_inputs(graph, kSeed));
    expected = own(inputs);
  } catch (const std::exception&) {
    // Some models do not accept arbitrary numbers.
    inputs = inputs_of(zero_inputs(graph));
    expected = own(inputs);
  }
  compare(inputs, expected, options);
  const auto measured = std::make_shared<double>(0);
  constexpr int kRuns = 4;
  const bool is_done =
      thread_.run([inputs, measured](LocalEngine& each) { *measured = measured_seconds(each, inputs); },
                  kRuns * options.start_limit, options.check);
  if (!is_done) throw Error(ErrorKind::kTimeout, "the robot's engine did not return while it was measured");
  seconds_ = *measured;
  limit_ = std::max(kPatience * seconds_, own_seconds) + kWakeUp;
  is_quicker_ = seconds_ < own_seconds;
  counts_.seconds = seconds_;
  if (is_quicker_) return;
  log(LogLevel::kInfo, "infer: the robot's engine is not used: it takes " + plan::number(seconds_) +
                           " s, the model's operators " + plan::number(own_seconds) + " s");
}

std::vector<Value> EngineRuns::inputs_of(std::span<const HostBytes> bytes) const {
  const Graph& graph = model_.graph();
  if (bytes.size() != graph.inputs.size()) {
    throw Error(ErrorKind::kInvalidArgument, "the engine's example has " + std::to_string(bytes.size()) +
                                                 " inputs, but the model has " + std::to_string(graph.inputs.size()));
  }
  std::vector<Value> values;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    values.push_back(model_.runner().from_host(graph.tensors.at(static_cast<std::size_t>(graph.inputs[i])), bytes[i]));
  }
  return values;
}

std::vector<Value> EngineRuns::first_run(std::span<const Value> inputs, const EngineOptions& options) {
  const std::vector<Value> given(inputs.begin(), inputs.end());
  const auto made = std::make_shared<std::vector<Value>>();
  model_.runner().wait();
  bool is_done = false;
  try {
    const auto job = [given, made](LocalEngine& engine) { *made = engine.run(given); };
    is_done = thread_.run(job, options.start_limit, options.check);
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string("the robot's engine does not accept the model's inputs: ") + error.what());
  }
  if (is_done) return std::move(*made);
  throw Error(ErrorKind::kTimeout,
              "the robot's engine has not answered within " + plan::number(options.start_limit.count()) + " s");
}

// Throws where the engine's outputs are not the expected ones.
void EngineRuns::compare(std::span<const Value> inputs, std::span<const Value> expected, const EngineOptions& options) {
  const std::vector<Value> found = first_run(inputs, options);
  const std::string misfit = misfit_of(model_.graph(), model_.runner(), found);
  if (!misfit.empty())
    throw Error(ErrorKind::kInvalidArgument, "the robot's engine does not match this model: " + misfit);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Tensor type = model_.runner().type_of(expected[i]);
    const HostBytes mine = model_.runner().to_host(expected[i]);
    const HostBytes its = model_.runner().to_host(found[i]);
    const double deviation = deviation_of(type, mine.bytes, its.bytes);
    const bool is_float = is_floating(type.dtype);
    const double allowed =
        is_float ? options.tolerance.value_or(usual_tolerance(type.dtype)) : usual_tolerance(type.dtype);
    counts_.deviation = std::max(counts_.deviation, deviation);
    if (deviation <= allowed) continue;
    throw Error(ErrorKind::kInvalidArgument, "the robot's engine does not reproduce the model's outputs: output " +
                                                 std::to_string(i) + " deviates by " + plan::number(deviation) +
                                                 (is_float ? " of its largest magnitude" : " of its elements") +
                                                 ", but " + plan::number(allowed) +
                                                 " is allowed: make the engine from this model with these weights" +
                                                 (is_float ? ", or allow more (engine_tolerance)" : ""));
  }
}

bool EngineRuns::is_used() const {
  if (!is_quicker_ || thread_.is_busy()) return false;
  const std::lock_guard lock(mutex_);
  return failed_in_row_ < kMaxFailures;
}

std::optional<std::vector<Value>> EngineRuns::run(std::span<const Value> inputs, const std::function<void()>& check) {
  if (!is_used()) return std::nullopt;
  const std::vector<Value> given(inputs.begin(), inputs.end());
  const auto made = std::make_shared<std::vector<Value>>();
  model_.runner().wait();  // inputs may still be on their way to the device
  try {
    const std::chrono::duration<double> limit(limit_);
    if (!thread_.run([given, made](LocalEngine& engine) { *made = engine.run(given); }, limit, check)) {
      failed("it has not answered within " + plan::number(limit_) + " s", true);
      return std::nullopt;
    }
  } catch (const Error& error) {
    failed(error.what(), false);
    return std::nullopt;
  }
  const std::string misfit = misfit_of(model_.graph(), model_.runner(), *made);
  if (!misfit.empty()) {
    failed(misfit, false);
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  ++counts_.runs;
  failed_in_row_ = 0;
  return std::move(*made);
}

void EngineRuns::failed(const std::string& text, bool is_late) {
  bool is_given_up = false;
  {
    const std::lock_guard lock(mutex_);
    ++(is_late ? counts_.late : counts_.failures);
    counts_.text = text;
    is_given_up = ++failed_in_row_ >= kMaxFailures;
  }
  log(LogLevel::kWarning, "infer: the robot's engine failed, so the model's operators compute the answer: " + text +
                              (is_given_up ? " (the engine is not used any more)" : ""));
}

EngineReport EngineRuns::report() const {
  const bool is_busy = thread_.is_busy();
  const std::lock_guard lock(mutex_);
  EngineReport report = counts_;
  report.state = !is_quicker_ ? "slower" : failed_in_row_ >= kMaxFailures ? "given up" : is_busy ? "stalled" : "used";
  return report;
}

}  // namespace atl::infer
