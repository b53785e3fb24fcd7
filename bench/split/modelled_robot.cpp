// SPDX-License-Identifier: Apache-2.0
#include "bench/split/modelled_robot.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/infer/run/costs.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/run/measure.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/plan/operators/published_profile.h"
#include "tests/support/graph_text.h"

namespace atl::bench {
namespace {

using infer::test::Machine;
using infer::test::ModelledRunner;

constexpr std::uint64_t kInputs = 3;       // sets of inputs
constexpr double kFramePayload = 1 << 15;  // of a message's frames, as LinkExchange cuts them
constexpr double kRecordPayload = 1 << 14;
constexpr double kRecordExtra = 22;  // header, type and tag of a TLS 1.3 record

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// By node, as a session counts them: split along the same dimension on both machines, or not at all.
infer::NodeCosts costs_of(const infer::Graph& graph, Machine machine, const infer::Operators& operators,
                          bool is_divided) {
  const infer::Profile profile = modelled_profile(graph, machine);
  infer::NodeCosts costs(graph.nodes.size());
  for (const infer::Operators::Operator& each : operators.operators) {
    if (each.node < 0) continue;
    const std::size_t node = at(each.node);
    if (is_divided) {
      costs[node] = {profile.fixed[node], profile.per_row[node] * static_cast<double>(each.rows)};
    } else {
      costs[node] = {profile.whole[node], 0};
    }
  }
  return costs;
}

}  // namespace

ModelledRobot::ModelledRobot(const std::string& profile, std::optional<std::int64_t> input_bytes, double speed) {
  plan::OperatorGraph published = plan::published_profile(profile, input_bytes).graph;
  for (plan::Operator& each : published.operators) {
    for (plan::RowCost* cost : {&each.robot, &each.server}) {
      cost->fixed /= speed;
      cost->per_row /= speed;
    }
  }
  graph_ = infer::test::modelled_graph(published);
  infer::test::register_layer_rule();
  infer::SplitDim along{graph_.inputs.front(), 0};
  const bool is_divided = along == infer::usual_split(graph_);
  if (!is_divided) along = {};
  const infer::Operators operators = infer::operators_of(graph_, along.input_tensor, along.dim);
  exact_ = infer::operator_graph(graph_, operators, costs_of(graph_, Machine::kRobot, operators, is_divided),
                                 costs_of(graph_, Machine::kServer, operators, is_divided));
  framed_ = exact_;
  for (plan::Operator& each : framed_.operators) {
    each.bytes = static_cast<std::int64_t>(std::llround(framed(static_cast<double>(each.bytes))));
  }
  for (std::uint64_t i = 0; i < kInputs; ++i) {
    std::vector<Bytes> set;
    for (const int input : graph_.inputs) {
      set.push_back(infer::test::modelled_input(graph_.tensors[at(input)], 100 * i + set.size()));
    }
    answers_.push_back(answer_to(set));
    inputs_.push_back(std::move(set));
  }
}

infer::Bundle ModelledRobot::bundle() const {
  // A safetensors file without tensors.
  const auto weights = std::make_shared<const std::string>("\x02\0\0\0\0\0\0\0{}", 10);
  return infer::make_bundle(infer::to_json(graph_), {as_byte_span(*weights), weights}, "the modelled one");
}

infer::Profile ModelledRobot::profile() const { return modelled_profile(graph_, Machine::kRobot); }

std::vector<infer::HostBytes> ModelledRobot::inputs(std::uint64_t number) const {
  std::vector<infer::HostBytes> set;
  for (const Bytes& bytes : inputs_[number % kInputs]) {
    set.push_back({bytes, std::shared_ptr<const void>(bytes.data(), [](const void*) {})});  // they stay with the robot
  }
  return set;
}

bool ModelledRobot::is_answer(std::uint64_t number, const std::vector<infer::HostBytes>& outputs) const {
  const std::vector<Bytes>& expected = answers_[number % kInputs];
  return std::equal(outputs.begin(), outputs.end(), expected.begin(), expected.end(),
                    [](const infer::HostBytes& got, const Bytes& wanted) {
                      return std::equal(got.bytes.begin(), got.bytes.end(), wanted.begin(), wanted.end());
                    });
}

// By operators, none of which is divided, so that no plan affects the speed.
std::vector<ModelledRobot::Bytes> ModelledRobot::answer_to(const std::vector<Bytes>& inputs) const {
  const auto runner = std::make_shared<ModelledRunner>(Machine::kRobot, 0);
  const infer::LoadedModel model(graph_, {}, runner);
  const infer::Operators operators = infer::operators_of(graph_, -1, -1);
  infer::Inference inference(model, operators);
  std::vector<std::vector<Region>> held(graph_.tensors.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const int tensor = graph_.inputs[i];
    inference.set_input(tensor, runner->from_host(graph_.tensors[at(tensor)], {inputs[i], nullptr}));
    held[at(tensor)] = {infer::rows_of(graph_, operators, tensor)};
  }
  inference.run(infer::rest_of(graph_, operators, held), infer::no_exchange());
  std::vector<Bytes> answers;
  for (const infer::Argument& output : graph_.outputs) {
    const infer::HostBytes made = runner->to_host(inference.whole(std::get<infer::TensorId>(output).id));
    answers.emplace_back(made.bytes.begin(), made.bytes.end());
  }
  return answers;
}

plan::Timeline ModelledRobot::timeline(const plan::OperatorPlan& plan, const plan::Channel& link,
                                       const plan::RobotPower& power, bool with_frames) const {
  if (plan.shares.size() != exact_.operators.size()) {
    throw Error(ErrorKind::kInternal, "a plan of " + std::to_string(plan.shares.size()) + " operators for a model of " +
                                          std::to_string(exact_.operators.size()));
  }
  return plan::simulate(with_frames ? framed_ : exact_, link, power, plan.shares, plan.chunks);
}

double ModelledRobot::framed(double bytes) noexcept {
  const double sent = bytes + std::ceil(bytes / kFramePayload) * static_cast<double>(infer::wire::kHeaderBytes);
  return sent + std::ceil(sent / kRecordPayload) * kRecordExtra;
}

}  // namespace atl::bench
