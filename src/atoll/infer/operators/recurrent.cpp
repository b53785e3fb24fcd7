// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "atoll/infer/operators/operators.h"

// Recurrent layers. Their kernels take as many weights as the layers imply, in an order that only the shapes reveal.
namespace atl::infer::operators {
namespace {

constexpr std::int64_t kMaxLayers = 100;

struct Layers {
  std::int64_t count = 1;
  std::int64_t ways = 1;  // 2: forward and backward
  std::int64_t gates = 1;
  std::int64_t hidden = 0;
  bool biased = false;
};

// For each layer and way: weights of the input and of the state, and their biases.
void require_weights(const CallView& view, const Layers& layers, const Tensor& input) {
  const std::vector<const Tensor*> weights = view.tensors(2);
  const std::int64_t each = layers.biased ? 4 : 2;
  view.require(static_cast<std::int64_t>(weights.size()) == layers.count * layers.ways * each,
               "the number of its weights does not match its layers");
  const std::int64_t rows = layers.gates * layers.hidden;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i) / (layers.ways * each);
    const auto kind = static_cast<std::int64_t>(i) % each;
    Shape shape{rows};
    if (kind == 0) shape.push_back(layer == 0 ? input.shape.back() : layers.hidden * layers.ways);
    if (kind == 1) shape.push_back(layers.hidden);
    if (*weights[i] != Tensor{input.dtype, shape})
      view.refuse("weight " + std::to_string(i) + " has the wrong shape or type");
  }
}

// (input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first); hx is the state, or a list
// of states.
Made recurrent(const CallView& view, std::int64_t gates, bool two_states) {
  view.require_arguments(9);
  const Tensor& input = view.tensor(0, Dtypes{Dtype::kFloat32, Dtype::kFloat64});
  view.require(input.shape.size() == 3, "its input must have 3 dimensions");
  std::vector<const Tensor*> states;
  if (two_states) {
    states = view.tensors(1);
  } else {
    states.push_back(&view.tensor(1));
  }
  view.require(states.size() == (two_states ? 2U : 1U) && states[0]->shape.size() == 3,
               "its states must have 3 dimensions");
  Layers layers;
  layers.biased = view.boolean(3);
  layers.count = view.integer(4, 1, kMaxLayers);
  static_cast<void>(view.real(5));
  view.require(!view.boolean(6), "it must not be in training");
  layers.ways = view.boolean(7) ? 2 : 1;
  layers.gates = gates;
  layers.hidden = states[0]->shape[2];
  view.require(layers.hidden <= kMaxAdmittedRows / 8, "its state is too large");
  const bool batch_first = view.boolean(8);
  const std::int64_t batch = input.shape[batch_first ? 0 : 1];
  const std::int64_t steps = input.shape[batch_first ? 1 : 0];
  const Tensor state{input.dtype, {layers.count * layers.ways, batch, layers.hidden}};
  for (const Tensor* one_state : states) view.require(*one_state == state, "its states have the wrong shape or type");
  require_weights(view, layers, input);
  Shape shape = input.shape;
  shape.back() = layers.hidden * layers.ways;
  Made made = with_copies(view, one(view, input.dtype, std::move(shape)));
  double weights = 0;
  for (const Tensor* weight : view.tensors(2)) weights += count_of(weight->shape);
  const double rows = static_cast<double>(batch) * static_cast<double>(steps);
  made.workspace_bytes += 4 * bytes_in(made.outputs.front()) * static_cast<double>(gates + 1);
  made.operations = 2 * rows * weights + kMove * rows;
  for (std::size_t i = 0; i < states.size(); ++i) made.outputs.push_back(state);
  return made;
}

}  // namespace

void add_recurrent(Table& table) {
  table["aten::lstm.input"] = {[](const CallView& view) { return recurrent(view, 4, true); }};
  table["aten::gru.input"] = {[](const CallView& view) { return recurrent(view, 3, false); }};
  table["aten::rnn_tanh.input"] = {[](const CallView& view) { return recurrent(view, 1, false); }};
  table["aten::rnn_relu.input"] = {[](const CallView& view) { return recurrent(view, 1, false); }};
}

}  // namespace atl::infer::operators
