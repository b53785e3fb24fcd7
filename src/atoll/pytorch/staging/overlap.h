// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

// Finds strided tensors that share memory. The answers are exact: two columns of one matrix do not overlap. Dense
// tensors are compared by their ends; elements are examined only if the ranges of tensors with gaps intersect.

/// Returns whether two elements of the tensor share an address, so that it cannot hold a value for each.
bool overlaps_itself(const at::Tensor& tensor);

/// Returns whether the two tensors share memory.
bool overlap(const at::Tensor& a, const at::Tensor& b);

/// Returns the indices of two of `tensors` that share memory, the lower one first; nothing if no two do.
std::optional<std::pair<std::size_t, std::size_t>> overlapping_pair(const std::vector<at::Tensor>& tensors);

}  // namespace atl::pytorch
