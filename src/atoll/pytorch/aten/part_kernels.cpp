// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/part_kernels.h"

#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>

#include <cstdint>
#include <set>
#include <string>

#include "atoll/pytorch/aten/ivalues.h"

namespace atl::pytorch {
namespace {

constexpr std::size_t kStride = 3;
constexpr std::size_t kPadding = 4;
constexpr std::size_t kDilation = 5;

using Ints = std::vector<std::int64_t>;

Ints per_dim(Ints values, std::int64_t dims) {
  if (values.size() == 1) values.resize(static_cast<std::size_t>(dims), values.front());
  return values;
}

// Returns no padding for "same": PyTorch may then pad one side more, and passes on the padded input.
Ints padding_of(const infer::Argument& argument, std::int64_t dims) {
  const auto* list = std::get_if<infer::Ints>(&argument);
  return list == nullptr ? Ints(static_cast<std::size_t>(dims), 0) : per_dim(*list, dims);
}

// Returns a tensor of the argument's type and shape that takes almost no memory.
at::Tensor stand_in(const infer::Graph& graph, const infer::Argument& argument) {
  const infer::Tensor& tensor = graph.tensors.at(static_cast<std::size_t>(std::get<infer::TensorId>(argument).id));
  return at::zeros({1}, at::TensorOptions().dtype(scalar_type_of(tensor.dtype))).expand(tensor.shape);
}

bool is_one_dnns(const infer::Graph& graph, const infer::Node& node, std::size_t groups) {
  at::Tensor input = stand_in(graph, node.args.at(0));
  const at::Tensor weight = stand_in(graph, node.args.at(1));
  const std::int64_t dims = weight.dim() - 2;
  if (input.dim() == dims + 1) input = input.unsqueeze(0);
  std::optional<at::Tensor> bias;
  if (std::holds_alternative<infer::TensorId>(node.args.at(2))) bias = stand_in(graph, node.args[2]);
  const auto list = [&](std::size_t place) { return per_dim(std::get<infer::Ints>(node.args.at(place)), dims); };
  const auto symbolic = [](const Ints& values) { return std::vector<c10::SymInt>(values.begin(), values.end()); };
  const auto backend = at::native::select_conv_backend(
      input, weight, bias, symbolic(list(kStride)), symbolic(padding_of(node.args.at(kPadding), dims)),
      symbolic(list(kDilation)), false, symbolic(Ints(static_cast<std::size_t>(dims), 0)),
      std::get<std::int64_t>(node.args.at(groups)), std::nullopt);
  return backend == at::native::ConvBackend::Mkldnn;
}

std::optional<OneDnnConvolution> one_dnn_convolution(const infer::Graph& graph, const infer::Node& node) {
  const bool is_plain = node.op == "aten::conv1d" || node.op == "aten::conv2d" || node.op == "aten::conv3d";
  const bool is_either = node.op == "aten::convolution";
  if (!is_plain && !(is_either && std::get_if<bool>(&node.args.at(6)) && !std::get<bool>(node.args.at(6)))) {
    return std::nullopt;
  }
  const std::size_t groups = is_either ? 8 : 6;
  try {
    if (!is_one_dnns(graph, node, groups)) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // invalid arguments are refused when the node is called
  }
  const int input = std::get<infer::TensorId>(node.args.at(0)).id;
  return OneDnnConvolution{graph.tensors.at(static_cast<std::size_t>(input)).shape, groups};
}

// Returns nothing for the whole, for which PyTorch makes the same choice, and if oneDNN cannot be called directly.
std::optional<at::Tensor> convolve_part(const OneDnnConvolution& convolution,
                                        const std::vector<c10::IValue>& arguments) {
  at::Tensor input = arguments.at(0).toTensor();
  if (input.sizes() == at::IntArrayRef(convolution.input)) return std::nullopt;
  at::Tensor weight = arguments.at(1).toTensor();
  const std::int64_t dims = weight.dim() - 2;
  const auto list = [&](std::size_t place) { return per_dim(arguments.at(place).toIntVector(), dims); };
  Ints padding;
  if (!arguments.at(kPadding).isString()) {
    padding = list(kPadding);
  } else if (arguments[kPadding].toStringRef() == "valid") {
    padding.assign(static_cast<std::size_t>(dims), 0);
  } else {
    return std::nullopt;
  }
  Ints stride = list(kStride);
  Ints dilation = list(kDilation);
  const bool is_single = input.dim() == dims + 1;
  if (is_single) input = input.unsqueeze(0);
  if (dims == 1) {  // oneDNN has two and three dimensions only
    input = input.unsqueeze(2);
    weight = weight.unsqueeze(2);
    padding.insert(padding.begin(), 0);
    stride.insert(stride.begin(), 1);
    dilation.insert(dilation.begin(), 1);
  }
  const std::optional<at::Tensor> bias = arguments.at(2).toOptional<at::Tensor>();
  at::Tensor made =
      at::mkldnn_convolution(input, weight, bias, padding, stride, dilation, arguments.at(convolution.groups).toInt());
  if (dims == 1) made = made.squeeze(2);
  return is_single ? made.squeeze(0) : made;
}

// Returns the tensor arguments of operators that compute differently on tensors with gaps: batch norm uses another
// formula for them, and functions with vector code use their scalar code.
std::vector<std::size_t> contiguous_arguments(const infer::Node& node) {
  static const std::set<std::string> kNames{"aten::_native_batch_norm_legit_no_training",
                                            "aten::batch_norm",
                                            "aten::cos",
                                            "aten::elu",
                                            "aten::erf",
                                            "aten::exp",
                                            "aten::expm1",
                                            "aten::gelu",
                                            "aten::log",
                                            "aten::log1p",
                                            "aten::log_sigmoid",
                                            "aten::mish",
                                            "aten::pow",
                                            "aten::rsqrt",
                                            "aten::sigmoid",
                                            "aten::silu",
                                            "aten::sin",
                                            "aten::softplus",
                                            "aten::tanh"};
  std::vector<std::size_t> tensors;
  if (!kNames.contains(node.op)) return tensors;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    if (std::holds_alternative<infer::TensorId>(node.args[i]))
      tensors.push_back(i);  // for pow the base or the exponent
  }
  return tensors;
}

}  // namespace

PartKernel part_kernel_of(const infer::Graph& graph, const infer::Node& node) {
  return {one_dnn_convolution(graph, node), contiguous_arguments(node)};
}

std::optional<at::Tensor> run_part(const PartKernel& kernel, std::vector<c10::IValue>& arguments) {
  if (kernel.convolution) return convolve_part(*kernel.convolution, arguments);
  for (const std::size_t place : kernel.contiguous) {
    const at::Tensor& operand = arguments.at(place).toTensor();
    if (!operand.is_contiguous(operand.suggest_memory_format())) arguments[place] = operand.contiguous();
  }
  return std::nullopt;
}

}  // namespace atl::pytorch
