// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/regions.h"
#include "atoll/infer/row_map.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/exchange.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kReceivePollPeriod{1};
constexpr std::size_t kMaxSlices = 50'000;
constexpr std::size_t kMaxPartialCalls = 5'000;

using plan::as_index;

std::string type_text(const Tensor& tensor) {
  std::string shown = std::string(to_string(tensor.dtype)) + "[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    shown += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return shown + "]";
}

void check_made(const OperatorRunner& runner, const std::string& name, const Value& made, const Tensor& wanted) {
  if (!made) throw Error(ErrorKind::kInvalidArgument, name + " did not return an output that is used");
  const Tensor type = runner.type_of(made);
  if (type == wanted) return;
  throw Error(ErrorKind::kInvalidArgument, name + " returned " + type_text(type) + ", not " + type_text(wanted));
}

// The values as floats of this type.
template <typename Float>
HostBytes bytes_of(const std::vector<double>& values) {
  const auto floats = std::make_shared<const std::vector<Float>>(values.begin(), values.end());
  return {std::as_bytes(std::span(*floats)), floats};
}

class NoExchange final : public Exchange {
 public:
  void send(int tensor, Region /*rows*/, HostBytes /*bytes*/) override { refuse(tensor); }
  std::optional<HostBytes> receive(int tensor, Region /*rows*/, Deadline /*until*/) override { refuse(tensor); }

 private:
  [[noreturn]] static void refuse(int tensor) {
    throw Error(ErrorKind::kInternal, "a program without another side exchanges tensor " + std::to_string(tensor));
  }
};

}  // namespace

LoadedModel::LoadedModel(Graph graph, const std::map<std::string, HostBytes>& weights,
                         std::shared_ptr<OperatorRunner> runner)
    : graph_(std::move(graph)), runner_(std::move(runner)), constants_(graph_.tensors.size()) {
  for (const Weight& weight : graph_.weights) {
    const auto found = weights.find(weight.name);
    if (found == weights.end()) throw Error(ErrorKind::kProtocol, "the weight \"" + weight.name + "\" is missing");
    const Tensor& type = graph_.tensors[as_index(weight.tensor)];
    if (static_cast<std::int64_t>(found->second.bytes.size()) != type.bytes()) {
      throw Error(ErrorKind::kProtocol, "the weight \"" + weight.name + "\" has " +
                                            std::to_string(found->second.bytes.size()) + " bytes, and " +
                                            type_text(type) + " has " + std::to_string(type.bytes()));
    }
    constants_[as_index(weight.tensor)] = runner_->from_host(type, found->second);
  }
  for (const Node& node : graph_.nodes) calls_.push_back(runner_->prepare(graph_, node));
  const Operators operators = operators_of(graph_, -1, -1);
  for (const int index : operators.constants) compute_constant(index);
  std::vector<bool> used(graph_.tensors.size(), false);  // by inferences
  for (int i = 0; i < static_cast<int>(operators.operators.size()); ++i) {
    const int node = operators.operators[as_index(i)].node;
    if (node < 0) continue;
    for (const int tensor : operands_of(graph_.nodes[as_index(node)])) used[as_index(tensor)] = true;
  }
  for (const int tensor : outputs_of(graph_)) used[as_index(tensor)] = true;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) constants_[i].reset();
  }
}

const SlicedCall& LoadedModel::sliced(int node, int dim, Region rows) const {
  if (sliced_.size() > kMaxSlices) sliced_.clear();  // bounds the memory that old plans keep
  const std::tuple key{node, dim, rows.begin, rows.end};
  const auto found = sliced_.find(key);
  if (found != sliced_.end()) return found->second;
  return sliced_.emplace(key, slice(graph_, graph_.nodes.at(as_index(node)), dim, rows)).first->second;
}

const LoadedModel::Calls& LoadedModel::part_calls(const Operators::State& state, std::int64_t parts,
                                                  std::int64_t rows) const {
  if (partial_.size() > kMaxPartialCalls) partial_.clear();
  const std::tuple key{state.node, state.partial.of_state.front().dim, parts, rows};
  const auto known = partial_.find(key);
  if (known != partial_.end()) return known->second;
  Calls made;
  made.graph = parts == 0 ? state.partial.state_calls(rows) : state.partial.result_calls(parts, rows);
  made.uses.assign(made.graph.tensors.size(), 0);
  for (Node& node : made.graph.nodes) {
    node.module = "the parts of " + described(graph_, graph_.nodes[as_index(state.node)]);
    made.calls.push_back(runner_->prepare(made.graph, node));
    for (const int tensor : operands_of(node)) ++made.uses[as_index(tensor)];
  }
  return partial_.emplace(key, std::move(made)).first->second;
}

void LoadedModel::compute_constant(int index) {
  const Node& node = graph_.nodes[as_index(index)];
  std::vector<Value> operands;
  for (const int tensor : operands_of(node)) operands.push_back(constants_[as_index(tensor)]);
  std::vector<Value> made = runner_->run(call(index), operands, {});
  if (made.size() != node.outputs.size()) {
    throw Error(ErrorKind::kInvalidArgument, described(graph_, node) + " returned " + std::to_string(made.size()) +
                                                 " tensors, not " + std::to_string(node.outputs.size()));
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    const int tensor = node.outputs[i];
    if (made[i]) check_made(*runner_, described(graph_, node), made[i], graph_.tensors[as_index(tensor)]);
    constants_[as_index(tensor)] = std::move(made[i]);
  }
}

Exchange& no_exchange() {
  static NoExchange exchange;
  return exchange;
}

Inference::Inference(const LoadedModel& model, const Operators& operators)
    : model_(model), operators_(operators), pieces_(operators.dims.size()) {
  const std::size_t tensors = operators.dims.size() - operators.states.size();
  if (tensors == model.graph().tensors.size()) return;
  throw Error(ErrorKind::kInvalidArgument, "operators of a graph with " + std::to_string(tensors) +
                                               " tensors, but the model's has " +
                                               std::to_string(model.graph().tensors.size()));
}

void Inference::set_input(int tensor, Value value) {
  keep(tensor, rows_of(model_.graph(), operators_, tensor), std::move(value));
}

bool Inference::run(const Program& program, Exchange& exchange, const GoOn& go_on) {
  for (const Step& step : program.steps) {
    if (go_on && !go_on()) return false;
    switch (step.kind) {
      case Step::Kind::kCompute: compute(step.index, step.rows); break;
      case Step::Kind::kState: compute_state(step.index, step.rows); break;
      case Step::Kind::kResult: compute_result(step.index, step.rows); break;
      case Step::Kind::kSend:
        exchange.send(step.index, step.rows, model_.runner().to_host(piece(step.index, step.rows)));
        break;
      case Step::Kind::kReceive:
        if (!receive(step.index, step.rows, exchange, go_on)) return false;
        break;
      case Step::Kind::kFree: pieces_[as_index(step.index)].clear(); break;
    }
  }
  return true;
}

bool Inference::receive(int tensor, Region rows, Exchange& exchange, const GoOn& go_on) {
  std::optional<HostBytes> bytes;
  for (;;) {
    bytes = exchange.receive(tensor, rows, go_on ? Deadline::after(kReceivePollPeriod) : Deadline::never());
    if (bytes) break;
    if (go_on && !go_on()) return false;
  }
  keep(tensor, rows, model_.runner().from_host(type_of_rows(model_.graph(), operators_, tensor, rows), *bytes));
  return true;
}

void Inference::add(const Inference& other) {
  for (std::size_t i = 0; i < other.pieces_.size(); ++i) {
    for (const Piece& piece : other.pieces_[i]) keep(static_cast<int>(i), piece.rows, piece.value);
  }
}

std::vector<std::vector<Region>> Inference::held() const {
  std::vector<std::vector<Region>> held(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    for (const Piece& piece : pieces_[i]) held[i].push_back(piece.rows);
    held[i] = plan::without(held[i], {});
  }
  return held;
}

Value Inference::whole(int tensor) {
  const Value& constant = model_.constant(tensor);
  return constant ? constant : piece(tensor, rows_of(model_.graph(), operators_, tensor));
}

// Returns whether all rows are available.
bool Inference::is_whole(int tensor) const {
  if (model_.constant(tensor)) return true;
  const Region all = rows_of(model_.graph(), operators_, tensor);
  std::int64_t end = all.begin;
  for (const Piece& piece : pieces_[as_index(tensor)]) {
    if (piece.rows.begin > end) return false;
    end = std::max(end, piece.rows.end);
  }
  return end >= all.end && !pieces_[as_index(tensor)].empty();
}

void Inference::compute(int index, Region rows) {
  const Graph& graph = model_.graph();
  const Node& node = graph.nodes.at(as_index(index));
  if (node.outputs.empty() || rows.is_empty()) return;
  const int first = node.outputs.front();
  const int dim = operators_.dims[as_index(first)];
  const std::vector<int> tensors = infer::operands_of(node);
  std::vector<Value> made;
  Region kept;
  if (rows == rows_of(graph, operators_, first) &&
      std::all_of(tensors.begin(), tensors.end(), [&](int tensor) { return is_whole(tensor); })) {
    std::vector<Value> operands;  // the same call as in the unsplit model, for the same bits
    for (const int tensor : tensors) operands.push_back(whole(tensor));
    made = model_.runner().run(model_.call(index), operands, {});
  } else {
    const SlicedCall& call = model_.sliced(index, dim, rows);
    made = model_.runner().run(model_.call(index), operands_of(call), call.changes);
    kept = call.keep;
  }
  if (made.size() != node.outputs.size()) {
    throw Error(ErrorKind::kInvalidArgument, name_of(index) + " returned " + std::to_string(made.size()) +
                                                 " tensors, not " + std::to_string(node.outputs.size()));
  }
  for (const int tensor : operators_.operators[as_index(operators_.operator_of[as_index(first)])].makes) {
    const auto place = std::find(node.outputs.begin(), node.outputs.end(), tensor) - node.outputs.begin();
    Value value = std::move(made[static_cast<std::size_t>(place)]);
    if (value && !kept.is_empty()) value = model_.runner().narrow(value, dim, kept);
    check_made(model_.runner(), name_of(index), value, type_of_rows(graph, operators_, tensor, rows));
    keep(tensor, rows, std::move(value));
  }
}

const Operators::State& Inference::state_of(int node) const {
  const int first = model_.graph().nodes.at(as_index(node)).outputs.at(0);
  const int state = operators_.operators[as_index(operators_.operator_of[as_index(first)])].state;
  if (state < 0) throw Error(ErrorKind::kInternal, name_of(node) + " has no states");
  return operators_.states[as_index(state)];
}

// The operands of a part, with its rows.
std::vector<Value> Inference::taken(const Operators::State& state, const std::vector<Partial::Taken>& what,
                                    Region rows) {
  const std::vector<int> tensors = infer::operands_of(model_.graph().nodes[as_index(state.node)]);
  SlicedCall call;
  for (const Partial::Taken& of : what) call.operands.push_back({tensors.at(of.operand), of.dim, rows});
  return operands_of(call);
}

Value Inference::made_by(const LoadedModel::Calls& calls, const std::vector<Value>& inputs) const {
  std::vector<Value> values(calls.graph.tensors.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[as_index(calls.graph.inputs.at(i))] = inputs[i];
  std::vector<int> uses = calls.uses;
  for (std::size_t i = 0; i < calls.calls.size(); ++i) {
    const Node& node = calls.graph.nodes[i];
    const std::vector<int> tensors = infer::operands_of(node);
    std::vector<Value> operands;
    for (const int tensor : tensors) operands.push_back(values[as_index(tensor)]);
    std::vector<Value> made = model_.runner().run(*calls.calls[i], operands, {});
    for (const int tensor : tensors) {
      if (--uses[as_index(tensor)] == 0) values[as_index(tensor)].reset();
    }
    for (std::size_t k = 0; k < node.outputs.size(); ++k) values[as_index(node.outputs[k])] = std::move(made.at(k));
  }
  return values[as_index(std::get<TensorId>(calls.graph.outputs.front()).id)];
}

void Inference::compute_state(int index, Region rows) {
  const Operators::State& state = state_of(index);
  const LoadedModel::Calls& calls = model_.part_calls(state, 0, rows.size());
  Value made = made_by(calls, taken(state, state.partial.of_state, rows));
  check_made(model_.runner(), "the state of " + name_of(index), made, state.partial.state);
  keep(state.tensor, rows, std::move(made));
}

void Inference::compute_result(int index, Region rows) {
  const Operators::State& state = state_of(index);
  std::vector<Value> parts;
  std::vector<double> shares;
  std::int64_t end = 0;
  for (const Piece& piece : pieces_[as_index(state.tensor)]) {
    if (piece.rows.begin != end) break;
    end = piece.rows.end;
    parts.push_back(piece.value);
    shares.push_back(static_cast<double>(piece.rows.size()) / static_cast<double>(state.partial.rows));
  }
  if (end != state.partial.rows || parts.size() != pieces_[as_index(state.tensor)].size()) {
    throw Error(ErrorKind::kInternal, "the states of all rows of " + name_of(index) +
                                          " are needed once, but those of " + to_string(Region{0, end}) +
                                          " are available");
  }
  const auto count = static_cast<std::int64_t>(parts.size());
  const LoadedModel::Calls& calls = model_.part_calls(state, count, rows.size());
  const Tensor& type = calls.graph.tensors[as_index(calls.graph.inputs.at(1))];
  const HostBytes bytes = type.dtype == Dtype::kFloat64 ? bytes_of<double>(shares) : bytes_of<float>(shares);
  std::vector<Value> inputs{model_.runner().join(parts, 0), model_.runner().from_host(type, bytes)};
  for (Value& operand : taken(state, state.partial.of_result, rows)) inputs.push_back(std::move(operand));
  const int first = model_.graph().nodes[as_index(index)].outputs.front();
  Value made = made_by(calls, inputs);
  check_made(model_.runner(), name_of(index), made, type_of_rows(model_.graph(), operators_, first, rows));
  keep(first, rows, std::move(made));
}

std::vector<Value> Inference::operands_of(const SlicedCall& call) {
  OperatorRunner& runner = model_.runner();
  std::vector<Value> operands;
  for (const OperandSlice& read : call.operands) {
    if (read.dim < 0) {
      operands.push_back(whole(read.tensor));
    } else if (read.dim == operators_.dims[as_index(read.tensor)]) {
      operands.push_back(piece(read.tensor, read.rows));
    } else {
      operands.push_back(runner.narrow(whole(read.tensor), read.dim, read.rows));
    }
  }
  for (const Pad& pad : call.pads) {
    Value& operand = operands.at(pad.operand);
    if (pad.low > 0 || pad.high > 0) operand = runner.pad(operand, pad.dim, pad.low, pad.high, pad.value);
  }
  return operands;
}

// No piece lies within another, so pieces are also ordered by their ends.
void Inference::keep(int tensor, Region rows, Value value) {
  std::vector<Piece>& pieces = pieces_[as_index(tensor)];
  for (const Piece& piece : pieces) {
    if (piece.rows.holds(rows)) return;
  }
  std::erase_if(pieces, [&](const Piece& piece) { return rows.holds(piece.rows); });
  const auto next =
      std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.rows.begin > rows.begin; });
  pieces.insert(next, {rows, std::move(value)});
}

Value Inference::piece(int tensor, Region rows) {
  OperatorRunner& runner = model_.runner();
  const int dim = operators_.dims[as_index(tensor)];
  // An operator may need an operand but none of its rows.
  if (rows.is_empty()) return runner.from_host(type_of_rows(model_.graph(), operators_, tensor, rows), {});
  const std::vector<Piece>& pieces = pieces_[as_index(tensor)];
  std::vector<Value> parts;
  std::int64_t end = rows.begin;
  for (const Piece& piece : pieces) {
    const Region part{end, std::min(rows.end, piece.rows.end)};
    if (piece.rows.begin > end || part.is_empty()) continue;
    const Region place{part.begin - piece.rows.begin, part.end - piece.rows.begin};
    parts.push_back(part == piece.rows ? piece.value : runner.narrow(piece.value, dim, place));
    end = part.end;
  }
  if (end != rows.end) {
    throw Error(ErrorKind::kInternal, "rows " + to_string(Region{end, rows.end}) + " of tensor " +
                                          std::to_string(tensor) + " are needed but not available");
  }
  if (parts.size() == 1) return parts.front();
  Value joined = runner.join(parts, dim);
  if (rows.holds({pieces.front().rows.begin, pieces.back().rows.end})) keep(tensor, rows, joined);
  return joined;
}

std::string Inference::name_of(int node) const {
  return described(model_.graph(), model_.graph().nodes[as_index(node)]);
}

}  // namespace atl::infer
