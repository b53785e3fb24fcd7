// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <numeric>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Normalisations. Kernels of batch norm read as many statistics as the input has channels, even if there are fewer.
namespace atl::infer::safety {
namespace {

constexpr Dtypes kPrecise{Dtype::kFloat32, Dtype::kFloat64};  // statistics have the input's type on every device

Made normed(const CallView& view, const Tensor& input) {
  Made made = with_copies(view, one(view, input.dtype, input.shape));
  made.operations *= 4;
  return made;
}

void require_epsilon(const CallView& view, std::size_t argument) {
  view.require(view.real(argument) >= 0, "its epsilon must not be negative");
}

Shape channels_of(const CallView& view, const Tensor& input) {
  view.require(input.shape.size() >= 2, "its input has no channels");
  return {input.shape[1]};
}

void require_statistics(const CallView& view, const Tensor& input, const Shape& channels) {
  for (const std::size_t argument : {std::size_t{3}, std::size_t{4}}) {
    view.require(!view.is_null(argument), "it lacks statistics");
    require_weight(view, argument, input, channels);
  }
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
Made batch_norm(const CallView& view) {
  view.require_arguments(9);
  const Tensor& input = view.tensor(0, kFloats);
  const Shape channels = channels_of(view, input);
  for (const std::size_t argument : {std::size_t{1}, std::size_t{2}}) require_weight(view, argument, input, channels);
  require_statistics(view, input, channels);
  view.require(!view.boolean(5), "in training it changes its statistics");
  static_cast<void>(view.real(6));
  require_epsilon(view, 7);
  static_cast<void>(view.boolean(8));
  return normed(view, input);
}

// (input, weight, bias, running_mean, running_var, momentum, eps): the result and two tensors without elements.
Made plain_batch_norm(const CallView& view) {
  view.require_arguments(7);
  const Tensor& input = view.tensor(0, kPrecise);
  const Shape channels = channels_of(view, input);
  for (const std::size_t argument : {std::size_t{1}, std::size_t{2}}) require_weight(view, argument, input, channels);
  require_statistics(view, input, channels);
  static_cast<void>(view.real(5));
  require_epsilon(view, 6);
  Made made = normed(view, input);
  for (int i = 0; i < 2; ++i) made.outputs.push_back({input.dtype, {0}});
  return made;
}

// (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled)
Made instance_norm(const CallView& view) {
  view.require_arguments(9);
  const Tensor& input = view.tensor(0, kFloats);
  const Shape channels = channels_of(view, input);
  view.require(input.shape.size() >= 3, "its input has no spatial dimensions to normalise over");
  for (const std::size_t argument : {std::size_t{1}, std::size_t{2}}) require_weight(view, argument, input, channels);
  if (view.boolean(5)) {
    view.require_null(3);
    view.require_null(4);
  } else {
    require_statistics(view, input, channels);
  }
  static_cast<void>(view.real(6));
  require_epsilon(view, 7);
  static_cast<void>(view.boolean(8));
  return normed(view, input);
}

// The last dimensions, which `argument` lists.
Shape normalised(const CallView& view, const Tensor& input, std::size_t argument) {
  const Ints sizes = view.integers(argument, 1, kMaxAdmittedRows);
  view.require(!sizes.empty() && sizes.size() <= input.shape.size(),
               "it must normalise over one or more dimensions of its input");
  Shape last(input.shape.end() - static_cast<std::ptrdiff_t>(sizes.size()), input.shape.end());
  view.require(sizes == last, "its sizes must be those of its input's last dimensions");
  return last;
}

// (input, normalized_shape, weight, bias, eps[, cudnn_enable])
Made layer_norm(const CallView& view) {
  view.require_arguments(6);
  const Tensor& input = view.tensor(0, kFloats);
  const Shape sizes = normalised(view, input, 1);
  for (const std::size_t argument : {std::size_t{2}, std::size_t{3}}) require_weight(view, argument, input, sizes);
  require_epsilon(view, 4);
  static_cast<void>(view.boolean(5));
  return normed(view, input);
}

Made native_layer_norm(const CallView& view) {
  view.require_arguments(5);
  const Tensor& input = view.tensor(0, kPrecise);
  const Shape sizes = normalised(view, input, 1);
  for (const std::size_t argument : {std::size_t{2}, std::size_t{3}}) require_weight(view, argument, input, sizes);
  require_epsilon(view, 4);
  Made made = normed(view, input);
  Shape statistics = input.shape;
  for (std::size_t i = statistics.size() - sizes.size(); i < statistics.size(); ++i) statistics[i] = 1;
  for (int i = 0; i < 2; ++i) made.outputs.push_back({input.dtype, statistics});
  return made;
}

// (input, normalized_shape, weight, eps)
Made rms_norm(const CallView& view) {
  view.require_arguments(4);
  const Tensor& input = view.tensor(0, kFloats);
  require_weight(view, 2, input, normalised(view, input, 1));
  if (!view.is_null(3)) require_epsilon(view, 3);
  return normed(view, input);
}

void require_groups(const CallView& view, std::size_t argument, const Shape& channels) {
  view.require(channels[0] % view.integer(argument, 1, kMaxAdmittedRows) == 0, "its groups do not divide its channels");
}

// (input, num_groups, weight, bias, eps, cudnn_enabled)
Made group_norm(const CallView& view) {
  view.require_arguments(6);
  const Tensor& input = view.tensor(0, kFloats);
  const Shape channels = channels_of(view, input);
  require_groups(view, 1, channels);
  for (const std::size_t argument : {std::size_t{2}, std::size_t{3}}) require_weight(view, argument, input, channels);
  require_epsilon(view, 4);
  static_cast<void>(view.boolean(5));
  return normed(view, input);
}

// (input, weight, bias, N, C, HxW, group, eps)
Made native_group_norm(const CallView& view) {
  view.require_arguments(8);
  const Tensor& input = view.tensor(0, kPrecise);
  const Shape channels = channels_of(view, input);
  for (const std::size_t argument : {std::size_t{1}, std::size_t{2}}) require_weight(view, argument, input, channels);
  const std::int64_t batch = view.integer(3, 1, kMaxAdmittedRows);
  const std::int64_t width = view.integer(4, 1, kMaxAdmittedRows);
  const std::int64_t places = view.integer(5, 1, kMaxAdmittedRows);
  const std::int64_t held =
      std::accumulate(input.shape.begin() + 2, input.shape.end(), std::int64_t{1}, std::multiplies<>());
  view.require(batch == input.shape[0] && width == channels[0] && places == held, "its counts do not match its input");
  require_groups(view, 6, channels);
  require_epsilon(view, 7);
  Made made = normed(view, input);
  for (int i = 0; i < 2; ++i) made.outputs.push_back({input.dtype, {batch, view.integer(6, 1, kMaxAdmittedRows)}});
  return made;
}

}  // namespace

void add_norm_validators(Operators& operators) {
  operators["aten::batch_norm"] = {batch_norm};
  operators["aten::_native_batch_norm_legit_no_training"] = {plain_batch_norm};
  operators["aten::instance_norm"] = {instance_norm};
  operators["aten::layer_norm"] = {layer_norm};
  operators["aten::native_layer_norm"] = {native_layer_norm};
  operators["aten::rms_norm"] = {rms_norm};
  operators["aten::group_norm"] = {group_norm};
  operators["aten::native_group_norm"] = {native_group_norm};
}

}  // namespace atl::infer::safety
