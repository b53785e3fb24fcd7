// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "atoll/infer/graph.h"

// On processors PyTorch chooses some kernels by the sizes or the strides of operands, so it would give a part to another
// one than the whole: with other rounding.
namespace atl::pytorch {

/// A convolution of a graph that is oneDNN's when it is whole.
struct OneDnnConvolution {
  infer::Shape input;      ///< of the whole
  std::size_t groups = 6;  ///< which argument
};

/// How parts of a node are to be computed as the whole is.
struct PartKernel {
  std::optional<OneDnnConvolution> convolution;
  std::vector<std::size_t> contiguous;  ///< which arguments are tensors that need to be without gaps
};

/// Asks PyTorch, for a processor and with as many threads as the caller has.
PartKernel part_kernel_of(const infer::Graph& graph, const infer::Node& node);

/// The result where the call is a part that needs another kernel than PyTorch would take. None: the call is to go on with
/// `arguments`, which may have changed.
std::optional<at::Tensor> run_part(const PartKernel& kernel, std::vector<c10::IValue>& arguments);

}  // namespace atl::pytorch
