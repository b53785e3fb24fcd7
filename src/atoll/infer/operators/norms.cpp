// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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

// (input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled), or plain, without the two
// booleans: with fixed statistics.
void read_batch_norm(const ArgumentReader& reader, bool is_plain) {
  const Shape channels = channels_of(reader, is_plain ? kPrecise : kFloats);
  require_weight_and_bias(reader, 1, channels);
  require_statistics(reader, channels);
  if (!is_plain) reader.require(!reader.boolean(5), "in training it changes its statistics");
}

// The plain one returns two more tensors, without elements.
Made batch_norm(const CallView& view, bool is_plain) {
  view.require_arguments(is_plain ? 7 : 9);
  read_batch_norm(view, is_plain);
  static_cast<void>(view.real(is_plain ? 5 : 6));
  read_epsilon(view, is_plain ? 6 : 7);
  if (!is_plain) static_cast<void>(view.boolean(8));
  Made made = normed(view);
  if (is_plain) made.outputs.resize(3, {view.tensor(0).dtype, {0}});
  return made;
}

Operator batch_norm_operator(bool is_plain) {
  return {[=](const CallView& view) { return batch_norm(view, is_plain); }, {[=](const NodeView& view, int output_dim) {
            read_batch_norm(view, is_plain);
            return by_channel(view, output_dim);
          }}};
}

// (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled): each sample and
// channel over its places. None: with fixed statistics.
std::optional<Normalisation> read_instance_norm(const ArgumentReader& reader) {
  reader.require_arguments(9);
  const Shape channels = channels_of(reader, kFloats);
  reader.require(reader.tensor(0).shape.size() >= 3, "its input has no spatial dimensions to normalise over");
  require_weight_and_bias(reader, 1, channels);
  const bool uses_input = reader.boolean(5);
  if (uses_input) {
    reader.require_null(3);
    reader.require_null(4);
  } else {
    require_statistics(reader, channels);
  }
  static_cast<void>(reader.real(6));
  const double epsilon = read_epsilon(reader, 7);
  if (!uses_input) return std::nullopt;
  return Normalisation{0, channels[0], true, epsilon, reader.operand_at(1), reader.operand_at(2)};
}

Made instance_norm(const CallView& view, const std::optional<Normalisation>& /*norm*/) {
  static_cast<void>(view.boolean(8));
  return normed(view);
}

std::optional<NodeSplit> split_instance_norm(const NodeView& view, const std::optional<Normalisation>& norm,
                                             int output_dim) {
  return norm && output_dim > 1 ? std::nullopt : by_channel(view, output_dim);
}

std::optional<std::int64_t> instance_norm_bytes(const NodeView& view, const std::optional<Normalisation>& norm,
                                                std::size_t operand, int dim) {
  if (!norm || operand != 0 || dim < 2) return std::nullopt;
  return moments_bytes(view, view.rows(0, 0) * norm->groups);
}

std::optional<Partial> instance_norm_states(const NodeView& view, const std::optional<Normalisation>& norm,
                                            std::size_t operand, int dim) {
  return norm && operand == 0 && dim > 1 ? norm_states(view, dim, *norm) : std::nullopt;
}

// (input, normalized_shape, weight, bias, eps, ...), or of squares (input, normalized_shape, weight, eps), where null
// as epsilon depends on the type.
Normalisation read_layer_norm(const ArgumentReader& reader, Dtypes types, bool is_centred) {
  const Tensor& input = reader.tensor(0, types);
  const Ints sizes = reader.integers(1, 1, kMaxAdmittedRows);
  reader.require(!sizes.empty() && sizes.size() <= input.shape.size(),
                 "it must normalise over one or more dimensions of its input");
  Normalisation norm{static_cast<int>(input.shape.size() - sizes.size()), 0, is_centred, 0, reader.operand_at(2)};
  reader.require(sizes == Shape(input.shape.begin() + norm.first, input.shape.end()),
                 "its sizes must be those of its input's last dimensions");
  require_weight(reader, 2, input, sizes);
  if (is_centred) {
    require_weight(reader, 3, input, sizes);
    norm.bias = reader.operand_at(3);
  }
  const std::size_t epsilon = is_centred ? 4 : 3;
  if (is_centred || !reader.is_null(epsilon)) norm.epsilon = read_epsilon(reader, epsilon);
  return norm;
}

Made layer_norm(const CallView& view, const Normalisation& /*norm*/) {
  view.require_arguments(6);
  static_cast<void>(view.boolean(5));
  return normed(view);
}

Made native_layer_norm(const CallView& view, const Normalisation& norm) {
  view.require_arguments(5);
  Made made = normed(view);
  Tensor statistics = view.tensor(0);
  std::fill(statistics.shape.begin() + norm.first, statistics.shape.end(), 1);
  made.outputs.resize(3, statistics);
  return made;
}

Made rms_norm(const CallView& view, const Normalisation& /*norm*/) {
  view.require_arguments(4);
  return normed(view);
}

std::optional<NodeSplit> split_layer_norm(const NodeView& view, const Normalisation& norm, int output_dim) {
  if (output_dim >= norm.first) return std::nullopt;
  return same_rows(view, Locality::kRow, output_dim, output_dim);
}

std::optional<std::int64_t> layer_norm_bytes(const NodeView& view, const Normalisation& norm, std::size_t operand,
                                             int dim) {
  if (operand != 0 || dim < norm.first) return std::nullopt;
  const Shape& shape = view.shape(0);
  return moments_bytes(
      view, std::accumulate(shape.begin(), shape.begin() + norm.first, std::int64_t{1}, std::multiplies<>()));
}

std::optional<Partial> layer_norm_states(const NodeView& view, const Normalisation& norm, std::size_t operand,
                                         int dim) {
  if (operand != 0 || dim < norm.first || (!norm.is_centred && view.is_null(3))) return std::nullopt;
  return norm_states(view, dim, norm);
}

using MadeByNorm = Made (*)(const CallView&, const Normalisation&);

Operator layer_norm_operator(MadeByNorm made_by, Dtypes types, bool is_centred) {
  const auto read = [=](const ArgumentReader& reader) { return read_layer_norm(reader, types, is_centred); };
  return {reading(read, made_by),
          {reading(read, split_layer_norm), {}, reading(read, layer_norm_bytes), reading(read, layer_norm_states)}};
}

// (input, num_groups, weight, bias, eps, ...); native: (input, weight, bias, N, C, HxW, groups, eps)
Normalisation read_group_norm(const ArgumentReader& reader, bool is_native) {
  const Shape channels = channels_of(reader, is_native ? kPrecise : kFloats);
  const Shape& shape = reader.tensor(0).shape;
  const std::size_t weight = is_native ? 1 : 2;
  require_weight_and_bias(reader, weight, channels);
  if (is_native) {
    const std::int64_t batch = reader.integer(3, 1, kMaxAdmittedRows);
    const std::int64_t width = reader.integer(4, 1, kMaxAdmittedRows);
    const std::int64_t places = reader.integer(5, 1, kMaxAdmittedRows);
    const std::int64_t held = std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<>());
    reader.require(batch == shape[0] && width == channels[0] && places == held, "its counts do not match its input");
  }
  const std::int64_t groups = reader.integer(is_native ? 6 : 1, 1, kMaxAdmittedRows);
  reader.require(channels[0] % groups == 0, "its groups do not divide its channels");
  const double epsilon = read_epsilon(reader, is_native ? 7 : 4);
  return {0, groups, true, epsilon, reader.operand_at(weight), reader.operand_at(weight + 1)};
}

Made group_norm(const CallView& view, const Normalisation& /*norm*/) {
  view.require_arguments(6);
  static_cast<void>(view.boolean(5));
  return normed(view);
}

Made native_group_norm(const CallView& view, const Normalisation& norm) {
  view.require_arguments(8);
  const Tensor& input = view.tensor(0);
  Made made = normed(view);
  made.outputs.resize(3, {input.dtype, {input.shape[0], norm.groups}});
  return made;
}

// Each sample over groups of channels and all places.
std::optional<NodeSplit> split_group_norm(const NodeView& view, const Normalisation& /*norm*/, int output_dim) {
  return output_dim == 0 ? same_rows(view, Locality::kElement, 0, 0) : std::nullopt;
}

// Argument 3 is the batch.
SlicedCall slice_native_group_norm(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.changes.push_back({3, rows.size()});
  return call;
}

std::optional<std::int64_t> group_norm_bytes(const NodeView& view, const Normalisation& norm, std::size_t operand,
                                             int dim) {
  if (operand != 0 || dim < 1) return std::nullopt;
  return moments_bytes(view, view.rows(0, 0) * norm.groups);
}

std::optional<Partial> group_norm_states(const NodeView& view, const Normalisation& norm, std::size_t operand,
                                         int dim) {
  return operand == 0 ? norm_states(view, dim, norm) : std::nullopt;
}

Operator group_norm_operator(MadeByNorm made_by, bool is_native) {
  const auto read = [=](const ArgumentReader& reader) { return read_group_norm(reader, is_native); };
  Rule rule{reading(read, split_group_norm), {}, reading(read, group_norm_bytes), reading(read, group_norm_states)};
  if (is_native) rule.slice = slice_native_group_norm;
  return {reading(read, made_by), std::move(rule)};
}

}  // namespace

void add_norms(Table& table) {
  table["aten::batch_norm"] = batch_norm_operator(false);
  table["aten::_native_batch_norm_legit_no_training"] = batch_norm_operator(true);
  table["aten::instance_norm"] = {reading(read_instance_norm, instance_norm),
                                  {reading(read_instance_norm, split_instance_norm),
                                   {},
                                   reading(read_instance_norm, instance_norm_bytes),
                                   reading(read_instance_norm, instance_norm_states)}};
  table["aten::layer_norm"] = layer_norm_operator(layer_norm, kFloats, true);
  table["aten::native_layer_norm"] = layer_norm_operator(native_layer_norm, kPrecise, true);
  table["aten::rms_norm"] = layer_norm_operator(rms_norm, kFloats, false);
  table["aten::group_norm"] = group_norm_operator(group_norm, false);
  table["aten::native_group_norm"] = group_norm_operator(native_group_norm, true);
}

}  // namespace atl::infer::operators
