// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/collectives/types.h"

namespace atl::test {

/// Exact small values in every dtype, independent of the library's own conversions. Complex numbers have a zero
/// imaginary part.
std::vector<std::byte> encode(collectives::DataType dtype, const std::vector<double>& values);
std::vector<double> decode(collectives::DataType dtype, const std::byte* data, std::size_t count);

/// Returns random bytes, the same for the same seed.
std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed);

/// Returns what rank `rank` contributes at `index`: small integers such that sums and products of twenty of them stay
/// in the range of every dtype for which the operation allows it.
double value_of(collectives::ReduceOp op, collectives::DataType dtype, int rank, std::size_t index);

/// Returns `accumulated op value` in float64 (bitwise operations and bool as the dtype defines them).
double combine(collectives::ReduceOp op, collectives::DataType dtype, double accumulated, double value);

/// Returns how far a reduced value of `dtype` may be from float64, for `ranks` contributions of magnitude up to 3.
double tolerance(collectives::DataType dtype, int ranks);

}  // namespace atl::test
