// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"

// Whether an engine computes the model that it is said to.
namespace atl::infer {

/// How far a tensor is from the one that is expected. Floating-point: the largest difference of two elements, relative to the
/// largest finite magnitude in either tensor; infinite where only one of two elements is NaN or the same infinity. Others:
/// the share of elements that differ. Both are of this type.
double deviation_of(const Tensor& type, std::span<const std::byte> expected, std::span<const std::byte> found);

/// The deviation that other kernels for the same operators may have: 1e-9 of float64, 1e-4 of float32, 1e-2 of float16, 8e-2
/// of bfloat16; of others, a thousandth of the elements, where rounding may have moved a value over a limit.
double usual_tolerance(Dtype dtype) noexcept;

/// Inputs of the graph that any engine should agree on: floating-point between -1 and 1, uint8 of all values, other integers 0
/// and 1, true for booleans. The same for the same seed.
std::vector<HostBytes> made_inputs(const Graph& graph, std::uint64_t seed);
std::vector<HostBytes> zero_inputs(const Graph& graph);

/// What is wrong with tensors that should be the graph's outputs; empty when nothing is.
std::string misfit_of(const Graph& graph, const OperatorRunner& runner, std::span<const Value> values);

}  // namespace atl::infer
