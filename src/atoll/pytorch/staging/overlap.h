// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

// Which strided tensors have memory in common. The answers are exact: two columns of one matrix have none. Tensors without
// gaps are compared by their ends; only where others lie in the same range are their elements looked at.

/// Whether two elements of the tensor lie in the same place, so that it cannot hold a value for each.
bool overlaps_itself(const at::Tensor& tensor);

/// Whether the two have memory in common.
bool overlap(const at::Tensor& a, const at::Tensor& b);

/// Two of `tensors` that have memory in common, lower index first; none: there are no such two.
std::optional<std::pair<std::size_t, std::size_t>> overlapping_pair(const std::vector<at::Tensor>& tensors);

}  // namespace atl::pytorch
