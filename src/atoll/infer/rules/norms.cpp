// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/rules/rules.h"
#include "atoll/infer/rules/states.h"

// Normalisations. Over dimensions other than the split one, a row needs only itself; over the split one, parts exchange
// sums: count, mean and squared deviations, merged as by Chan, Golub and LeVeque (1983).
namespace atl::infer {
namespace {

// Bytes of the statistics of `groups` groups: mean and squared deviations.
std::int64_t moments(const NodeView& view, std::int64_t groups) { return groups * 2 * sum_bytes(view.output().dtype); }

// (input, normalized_shape, ...): over the last dimensions.
int first_normalised(const NodeView& view) { return view.rank(0) - static_cast<int>(view.integers(1).size()); }

std::optional<NodeSplit> layer_norm(const NodeView& view, int output_dim) {
  if (output_dim >= first_normalised(view)) return std::nullopt;
  return same_rows(view, Locality::kRow, output_dim, output_dim);
}

std::optional<std::int64_t> layer_norm_bytes(const NodeView& view, std::size_t operand, int dim) {
  const int first = first_normalised(view);
  if (operand != 0 || first < 0 || dim < first) return std::nullopt;
  std::int64_t rows = 1;
  for (int i = 0; i < first; ++i) rows *= view.rows(0, i);
  return moments(view, rows);
}

// (input, normalized_shape, weight, bias, eps, ...), or of squares (input, normalized_shape, weight, eps).
std::optional<Partial> layer_norm_states(const NodeView& view, std::size_t operand, int dim, bool is_centred) {
  const std::size_t epsilon = is_centred ? 4 : 3;
  if (!layer_norm_bytes(view, operand, dim) || view.is_null(epsilon)) return std::nullopt;
  Normalisation norm{first_normalised(view), 0, is_centred, view.number(epsilon), view.operand_at(2)};
  if (is_centred) norm.bias = view.operand_at(3);
  return norm_states(view, dim, norm);
}

Rule layer_norm_rule(bool is_centred) {
  return {layer_norm, {}, layer_norm_bytes, [=](const NodeView& view, std::size_t operand, int dim) {
            return layer_norm_states(view, operand, dim, is_centred);
          }};
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

// (input, weight, bias, running_mean, running_var, training, ...): in training over batch and place.
std::optional<NodeSplit> batch_norm(const NodeView& view, int output_dim) {
  if (view.boolean(5)) return std::nullopt;
  return by_channel(view, output_dim);
}

std::optional<std::int64_t> batch_norm_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (!view.boolean(5) || operand != 0 || dim == 1 || view.rank(0) < 2) return std::nullopt;
  return moments(view, view.rows(0, 1));
}

// (input, weight, bias, running_mean, running_var, use_input_stats, ...): each sample and channel over its places.
std::optional<NodeSplit> instance_norm(const NodeView& view, int output_dim) {
  if (view.boolean(5) && output_dim > 1) return std::nullopt;
  return by_channel(view, output_dim);
}

std::optional<std::int64_t> instance_norm_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (!view.boolean(5) || operand != 0 || dim < 2) return std::nullopt;
  return moments(view, view.rows(0, 0) * view.rows(0, 1));
}

std::optional<Partial> instance_norm_states(const NodeView& view, std::size_t operand, int dim) {
  const bool has_running = !view.is_null(3) || !view.is_null(4);  // operands that states and results do not take
  if (has_running || !instance_norm_bytes(view, operand, dim)) return std::nullopt;
  return norm_states(view, dim, {0, view.rows(0, 1), true, view.number(7), view.operand_at(1), view.operand_at(2)});
}

// Each sample over groups of channels and all places.
std::optional<NodeSplit> group_norm(const NodeView& view, int output_dim) {
  if (output_dim != 0) return std::nullopt;
  return same_rows(view, Locality::kElement, output_dim, output_dim);
}

Rule group_norm_rule(std::size_t groups, bool has_batch) {
  Rule rule;
  rule.split = group_norm;
  if (has_batch) {  // native_group_norm: argument 3 is the batch
    rule.slice = [](const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
      SlicedCall call = call_by_rows(view, split, rows);
      call.changes.push_back({3, rows.size()});
      return call;
    };
  }
  rule.partial_bytes = [groups](const NodeView& view, std::size_t operand, int dim) -> std::optional<std::int64_t> {
    if (operand != 0 || dim < 1) return std::nullopt;
    const std::int64_t channels = std::max<std::int64_t>(1, view.rows(0, 1));
    return moments(view, view.rows(0, 0) * std::clamp<std::int64_t>(view.integer(groups), 1, channels));
  };
  // (input, groups, weight, bias, eps, ...); native: (input, weight, bias, batch, channels, places, groups, eps)
  const std::size_t weight = has_batch ? 1 : 2;
  const std::size_t epsilon = has_batch ? 7 : 4;
  rule.partial = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<Partial> {
    if (operand != 0 || view.integer(groups) < 1) return std::nullopt;
    return norm_states(
        view, dim,
        {0, view.integer(groups), true, view.number(epsilon), view.operand_at(weight), view.operand_at(weight + 1)});
  };
  return rule;
}

// (self, dim, ...): the maximum and the sum of each row.
std::optional<NodeSplit> softmax(const NodeView& view, int output_dim) {
  if (view.dim(1, view.output_rank()) == output_dim) return std::nullopt;
  return same_rows(view, Locality::kRow, output_dim, output_dim);
}

std::optional<std::int64_t> softmax_bytes(const NodeView& view, std::size_t operand, int dim) {
  if (operand != 0 || view.dim(1, view.rank(0)) != dim) return std::nullopt;
  const std::int64_t length = std::max<std::int64_t>(1, view.rows(0, dim));
  return view.output().elements() / length * 2 * sum_bytes(view.output().dtype);
}

// The third argument is true where halves are converted, which not every device supports.
Rule softmax_rule(bool is_log) {
  return {
      softmax, {}, softmax_bytes, [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<Partial> {
        const bool converts = view.argument(2) == Argument(true);
        if (converts || !softmax_bytes(view, operand, dim)) return std::nullopt;
        return softmax_states(view, dim, is_log);
      }};
}

}  // namespace

void add_norm_rules(Rules& rules) {
  for (const char* name : {"aten::layer_norm", "aten::native_layer_norm"}) rules[name] = layer_norm_rule(true);
  rules["aten::rms_norm"] = layer_norm_rule(false);
  rules["aten::_native_batch_norm_legit_no_training"] = {by_channel, {}, {}};
  rules["aten::batch_norm"] = {batch_norm, {}, batch_norm_bytes};
  rules["aten::native_batch_norm"] = {batch_norm, {}, batch_norm_bytes};
  rules["aten::instance_norm"] = {instance_norm, {}, instance_norm_bytes, instance_norm_states};
  rules["aten::group_norm"] = group_norm_rule(1, false);
  rules["aten::native_group_norm"] = group_norm_rule(6, true);
  for (const char* name : {"aten::softmax", "aten::_softmax"}) rules[name] = softmax_rule(false);
  for (const char* name : {"aten::log_softmax", "aten::_log_softmax"}) rules[name] = softmax_rule(true);
  rules["aten::_safe_softmax"] = {softmax, {}, softmax_bytes};
}

}  // namespace atl::infer
