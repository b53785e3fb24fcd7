// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "atoll/infer/graph.h"

// On CPUs PyTorch chooses some kernels by the sizes or strides of operands, so a part of a node may get another kernel
// than the whole, with different rounding. These functions make parts use the kernel of the whole.
namespace atl::pytorch {

/// A convolution of a graph that oneDNN computes when it is whole.
struct OneDnnConvolution {
  infer::Shape input;      ///< shape of the whole input
  std::size_t groups = 6;  ///< index of the argument
};

/// How to compute parts of a node as the whole is computed.
struct PartKernel {
  std::optional<OneDnnConvolution> convolution;
  std::vector<std::size_t> contiguous;  ///< indices of the arguments that must be contiguous
};

/// Finds PyTorch's kernel for a node on the CPU, with the caller's number of threads.
PartKernel part_kernel_of(const infer::Graph& graph, const infer::Node& node);

/// Computes a part that needs another kernel than PyTorch would choose, and returns the result. If it returns nothing,
/// the caller must make the call with `arguments`, which may have been changed.
std::optional<at::Tensor> run_part(const PartKernel& kernel, std::vector<c10::IValue>& arguments);

}  // namespace atl::pytorch
