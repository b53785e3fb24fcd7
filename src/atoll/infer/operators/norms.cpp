// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <numeric>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/infer/operators/states.h"

// Normalisations. Over dimensions other than the split one, a row needs only itself; over the split one, parts exchange
// sums: count, mean and squared deviations, merged as by Chan, Golub and LeVeque (1983). Kernels of batch norm read as
// many statistics as the input has channels, even if there are fewer.
namespace atl::infer::operators {
namespace {

constexpr Dtypes kPrecise{Dtype::kFloat32, Dtype::kFloat64};  // statistics have the input's type on every device

Made normed(const CallView& view) {
  const Tensor& input = view.tensor(0);
  Made made = with_copies(view, one(view, input.dtype, input.shape));
  made.operations *= 4;
  return made;
}

double read_epsilon(const ArgumentReader& reader, std::size_t argument) {
  const double epsilon = reader.real(argument);
  reader.require(epsilon >= 0, "its epsilon must not be negative");
  return epsilon;
}

void require_weight_and_bias(const ArgumentReader& reader, std::size_t first, const Shape& shape) {
  for (const std::size_t argument : {first, first + 1}) require_weight(reader, argument, reader.tensor(0), shape);
}

Shape channels_of(const ArgumentReader& reader, Dtypes types) {
  const Tensor& input = reader.tensor(0, types);
  reader.require(input.shape.size() >= 2, "its input has no channels");
  return {input.shape[1]};
}

void require_statistics(const ArgumentReader& reader, const Shape& channels) {
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    reader.require(!reader.is_null(argument), "it lacks statistics");
    require_weight(reader, argument, reader.tensor(0), channels);
  }
}

// Bytes of the statistics of `groups` groups: mean and squared deviations.
std::int64_t moments_bytes(const NodeView& view, std::int64_t groups) {
  return groups * 2 * sum_bytes(view.output().dtype);
}

// Operand 0 along `output_dim`, and the others by channel where that is the channels' dimension.
std::optional<NodeSplit> by_channel(const NodeView& view, int output_dim) {
  auto split = same_rows(view, Locality::kElement, output_dim, output_dim);
  if (!split || output_dim != 1) return split;
  for (std::size_t i = 1; i < view.operands(); ++i) {
    if (!follow_same(*split, view, i, 0, output_dim)) return std::nullopt;
  }
  return split;
}

// (input, weight, bias, running_mean, running_var, ...): with fixed statistics.
void read_batch_norm(const ArgumentReader& reader, bool is_plain) {
  const Shape channels = channels_of(reader, is_plain ? kPrecise : kFloats);
  require_weight_and_bias(reader, 1, channels);
  require_statistics(reader, channels);
  if (!is_plain) reader.require(!reader.boolean(5), "in training it changes its statistics");
}

// (..., training, momentum, eps, cudnn_enabled)
Made batch_norm(const CallView& view) {
  view.require_arguments(9);
  read_batch_norm(view, false);
  static_cast<void>(view.real(6));
  read_epsilon(view, 7);
  static_cast<void>(view.boolean(8));
  return normed(view);
}

// (..., momentum, eps): the result and two tensors without elements.
Made plain_batch_norm(const CallView& view) {
  view.require_arguments(7);
  read_batch_norm(view, true);
  static_cast<void>(view.real(5));
  read_epsilon(view, 6);
  Made made = normed(view);
  for (int i = 0; i < 2; ++i) made.outputs.push_back({view.tensor(0).dtype, {0}});
  return made;
}

Rule batch_norm_rule(bool is_plain) {
  return {[=](const NodeView& view, int output_dim) {
    read_batch_norm(view, is_plain);
    return by_channel(view, output_dim);
  }};
}

// (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled): each sample and
// channel over its places, or with fixed statistics.
struct InstanceNorm {
  bool uses_input = true;
  double epsilon = 0;
};

InstanceNorm read_instance_norm(const ArgumentReader& reader) {
  const Shape channels = channels_of(reader, kFloats);
  reader.require(reader.tensor(0).shape.size() >= 3, "its input has no spatial dimensions to normalise over");
  require_weight_and_bias(reader, 1, channels);
  InstanceNorm norm{reader.boolean(5)};
  if (norm.uses_input) {
    reader.require_null(3);
    reader.require_null(4);
  } else {
    require_statistics(reader, channels);
  }
  static_cast<void>(reader.real(6));
  norm.epsilon = read_epsilon(reader, 7);
  return norm;
}

Made instance_norm(const CallView& view) {
  view.require_arguments(9);
  read_instance_norm(view);
  static_cast<void>(view.boolean(8));
  return normed(view);
}

std::optional<NodeSplit> split_instance_norm(const NodeView& view, int output_dim) {
  if (read_instance_norm(view).uses_input && output_dim > 1) return std::nullopt;
  return by_channel(view, output_dim);
}

std::optional<std::int64_t> instance_norm_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (!read_instance_norm(view).uses_input || operand != 0 || dim < 2) return std::nullopt;
  return moments_bytes(view, view.rows(0, 0) * view.rows(0, 1));
}

std::optional<Partial> instance_norm_states(const NodeView& view, std::size_t operand, int dim) {
  const InstanceNorm norm = read_instance_norm(view);
  if (!norm.uses_input || operand != 0 || dim < 2) return std::nullopt;
  return norm_states(view, dim, {0, view.rows(0, 1), true, norm.epsilon, view.operand_at(1), view.operand_at(2)});
}

// (input, normalized_shape, weight, bias, eps, ...), or of squares (input, normalized_shape, weight, eps).
struct LayerNorm {
  int first = 0;  // of the last dimensions, over which it normalises
  std::optional<double> epsilon;
};

LayerNorm read_layer_norm(const ArgumentReader& reader, Dtypes types, bool is_centred) {
  const Tensor& input = reader.tensor(0, types);
  const Ints sizes = reader.integers(1, 1, kMaxAdmittedRows);
  reader.require(!sizes.empty() && sizes.size() <= input.shape.size(),
                 "it must normalise over one or more dimensions of its input");
  LayerNorm norm;
  norm.first = static_cast<int>(input.shape.size() - sizes.size());
  reader.require(sizes == Shape(input.shape.begin() + norm.first, input.shape.end()),
                 "its sizes must be those of its input's last dimensions");
  require_weight(reader, 2, input, sizes);
  if (is_centred) require_weight(reader, 3, input, sizes);
  const std::size_t epsilon = is_centred ? 4 : 3;
  if (is_centred || !reader.is_null(epsilon)) norm.epsilon = read_epsilon(reader, epsilon);
  return norm;
}

Made layer_norm(const CallView& view) {
  view.require_arguments(6);
  read_layer_norm(view, kFloats, true);
  static_cast<void>(view.boolean(5));
  return normed(view);
}

Made native_layer_norm(const CallView& view) {
  view.require_arguments(5);
  const LayerNorm norm = read_layer_norm(view, kPrecise, true);
  Made made = normed(view);
  Tensor statistics = view.tensor(0);
  for (auto rows = statistics.shape.begin() + norm.first; rows != statistics.shape.end(); ++rows) *rows = 1;
  for (int i = 0; i < 2; ++i) made.outputs.push_back(statistics);
  return made;
}

Made rms_norm(const CallView& view) {
  view.require_arguments(4);
  read_layer_norm(view, kFloats, false);
  return normed(view);
}

Rule layer_norm_rule(Dtypes types, bool is_centred) {
  Rule rule;
  rule.split = [=](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    if (output_dim >= read_layer_norm(view, types, is_centred).first) return std::nullopt;
    return same_rows(view, Locality::kRow, output_dim, output_dim);
  };
  rule.partial_bytes = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<std::int64_t> {
    const LayerNorm norm = read_layer_norm(view, types, is_centred);
    if (operand != 0 || dim < norm.first) return std::nullopt;
    const Shape& shape = view.shape(0);
    return moments_bytes(
        view, std::accumulate(shape.begin(), shape.begin() + norm.first, std::int64_t{1}, std::multiplies<>()));
  };
  rule.partial = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<Partial> {
    const LayerNorm norm = read_layer_norm(view, types, is_centred);
    if (operand != 0 || dim < norm.first || !norm.epsilon) return std::nullopt;
    Normalisation of{norm.first, 0, is_centred, *norm.epsilon, view.operand_at(2)};
    if (is_centred) of.bias = view.operand_at(3);
    return norm_states(view, dim, of);
  };
  return rule;
}

// (input, num_groups, weight, bias, eps, ...); native: (input, weight, bias, N, C, HxW, groups, eps)
struct GroupNorm {
  std::size_t weight = 2;
  std::int64_t groups = 1;
  double epsilon = 0;
};

GroupNorm read_group_norm(const ArgumentReader& reader, bool is_native) {
  const Shape channels = channels_of(reader, is_native ? kPrecise : kFloats);
  const Shape& shape = reader.tensor(0).shape;
  GroupNorm norm;
  norm.weight = is_native ? 1 : 2;
  if (is_native) {
    require_weight_and_bias(reader, norm.weight, channels);
    const std::int64_t batch = reader.integer(3, 1, kMaxAdmittedRows);
    const std::int64_t width = reader.integer(4, 1, kMaxAdmittedRows);
    const std::int64_t places = reader.integer(5, 1, kMaxAdmittedRows);
    const std::int64_t held = std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<>());
    reader.require(batch == shape[0] && width == channels[0] && places == held, "its counts do not match its input");
  }
  norm.groups = reader.integer(is_native ? 6 : 1, 1, kMaxAdmittedRows);
  reader.require(channels[0] % norm.groups == 0, "its groups do not divide its channels");
  if (!is_native) require_weight_and_bias(reader, norm.weight, channels);
  norm.epsilon = read_epsilon(reader, is_native ? 7 : 4);
  return norm;
}

Made group_norm(const CallView& view) {
  view.require_arguments(6);
  read_group_norm(view, false);
  static_cast<void>(view.boolean(5));
  return normed(view);
}

Made native_group_norm(const CallView& view) {
  view.require_arguments(8);
  const GroupNorm norm = read_group_norm(view, true);
  const Tensor& input = view.tensor(0);
  Made made = normed(view);
  for (int i = 0; i < 2; ++i) made.outputs.push_back({input.dtype, {input.shape[0], norm.groups}});
  return made;
}

// Each sample over groups of channels and all places.
Rule group_norm_rule(bool is_native) {
  Rule rule;
  rule.split = [=](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    read_group_norm(view, is_native);
    if (output_dim != 0) return std::nullopt;
    return same_rows(view, Locality::kElement, output_dim, output_dim);
  };
  if (is_native) {  // argument 3 is the batch
    rule.slice = [](const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
      SlicedCall call = call_by_rows(view, split, rows);
      call.changes.push_back({3, rows.size()});
      return call;
    };
  }
  rule.partial_bytes = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<std::int64_t> {
    const GroupNorm norm = read_group_norm(view, is_native);
    if (operand != 0 || dim < 1) return std::nullopt;
    return moments_bytes(view, view.rows(0, 0) * norm.groups);
  };
  rule.partial = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<Partial> {
    const GroupNorm norm = read_group_norm(view, is_native);
    if (operand != 0) return std::nullopt;
    return norm_states(
        view, dim,
        {0, norm.groups, true, norm.epsilon, view.operand_at(norm.weight), view.operand_at(norm.weight + 1)});
  };
  return rule;
}

}  // namespace

void add_norms(Table& table) {
  table["aten::batch_norm"] = {batch_norm, batch_norm_rule(false)};
  table["aten::_native_batch_norm_legit_no_training"] = {plain_batch_norm, batch_norm_rule(true)};
  table["aten::instance_norm"] = {instance_norm, {split_instance_norm, {}, instance_norm_bytes, instance_norm_states}};
  table["aten::layer_norm"] = {layer_norm, layer_norm_rule(kFloats, true)};
  table["aten::native_layer_norm"] = {native_layer_norm, layer_norm_rule(kPrecise, true)};
  table["aten::rms_norm"] = {rms_norm, layer_norm_rule(kFloats, false)};
  table["aten::group_norm"] = {group_norm, group_norm_rule(false)};
  table["aten::native_group_norm"] = {native_group_norm, group_norm_rule(true)};
}

}  // namespace atl::infer::operators
