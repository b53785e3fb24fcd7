// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

// Checks of arguments, made before anything is sent, so that an invalid call does not affect other ranks. All throw
// ValueError that begins with the operation's name.

/// Requires a dense tensor, on any device, whose values are defined by its memory or its conjugate, negative and zero
/// bits.
void check_tensor(const char* operation, const at::Tensor& tensor);
void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors);

/// Requires a tensor that can be written: an address of its own for each element. Call check_tensor() first.
void check_output(const char* operation, const at::Tensor& tensor);

/// Requires the same of several tensors, no two of which share memory.
void check_outputs(const char* operation, const std::vector<at::Tensor>& tensors);

/// Returns whether `part` is exactly part number `place` of `whole`, cut into parts of its size: an operation in place.
bool is_part(const at::Tensor& part, const at::Tensor& whole, int place = 0);

/// Returns `input`, or a copy if arriving `outputs` would overwrite it before it has been sent. `in_place`, if defined,
/// is the output that may overlap it.
at::Tensor apart(const at::Tensor& input, const std::vector<at::Tensor>& outputs, const at::Tensor& in_place = {});

/// Does the same for one input per rank; `output` may be exactly input number `own`.
std::vector<at::Tensor> apart_each(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int own);

/// Returns the only element of `list`, checked; `what` names the list in the message.
const at::Tensor& only(const char* operation, const char* what, const std::vector<at::Tensor>& list);

/// Returns the only list in `lists`, with one checked tensor per rank.
const std::vector<at::Tensor>& one_per_rank(const char* operation, const char* what,
                                            const std::vector<std::vector<at::Tensor>>& lists, int size);
void check_one_per_rank(const char* operation, const char* what, const std::vector<at::Tensor>& list, int size);

void check_same_length(const char* operation, std::size_t outputs, std::size_t inputs);
void check_rank(const char* operation, const char* what, std::int64_t rank, int size);
void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b);
void check_same_dtype(const char* operation, const at::Tensor& a, const std::vector<at::Tensor>& all);

/// Requires equal numbers of elements; `what` names the tensor that was found.
void check_numel(const char* operation, const char* what, std::int64_t expected, std::int64_t found);

/// Returns the number of elements in each rank's part of `tensor`: `splits` rows each, or equal parts if it is empty.
std::vector<std::int64_t> split_numels(const char* operation, const char* what, const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int size);

}  // namespace atl::pytorch
