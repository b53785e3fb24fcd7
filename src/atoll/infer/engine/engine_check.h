// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"

// Checks whether an engine computes the model that it was made from.
namespace atl::infer {

/// The deviation of a tensor from the expected one, both of type `type`. Floating-point: the largest difference of two
/// elements, relative to the largest finite magnitude in either tensor; infinite where two elements are not both NaN or
/// the same infinity. Others: the share of elements that differ.
double deviation_of(const Tensor& type, std::span<const std::byte> expected, std::span<const std::byte> found);

/// The deviation to expect from other kernels for the same operators: 1e-9 for float64, 1e-4 for float32, 1e-2 for
/// float16, 8e-2 for bfloat16; for others, a thousandth of the elements, where rounding may have moved a value over a
/// threshold.
double usual_tolerance(Dtype dtype) noexcept;

/// Random inputs of the graph on which every engine should agree: floating-point values between -1 and 1, uint8 of all
/// values, other integers 0 and 1, true for booleans. The same for the same seed.
std::vector<HostBytes> made_inputs(const Graph& graph, std::uint64_t seed);
std::vector<HostBytes> zero_inputs(const Graph& graph);

/// Describes why tensors cannot be the graph's outputs; empty when they can.
std::string misfit_of(const Graph& graph, const OperatorRunner& runner, std::span<const Value> values);

}  // namespace atl::infer
