// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

// Arguments are checked before anything is sent, so that a wrong call harms no other rank. All throw ValueError that begins
// with the operation's name.

/// A dense tensor, on any device, whose memory or whose bits say what its values are.
void check_tensor(const char* operation, const at::Tensor& tensor);
void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors);

/// A tensor that has been checked and can be written: its memory is its own, a place for each element.
void check_output(const char* operation, const at::Tensor& tensor);

/// Several, no two of which have memory in common.
void check_outputs(const char* operation, const std::vector<at::Tensor>& tensors);

/// Whether `part` is exactly the part number `place` of `whole`, of which all are as large: what operations work on in place.
bool is_part(const at::Tensor& part, const at::Tensor& whole, int place = 0);

/// `input`, or a copy of it where arriving `outputs` would overwrite it before it has been sent. `in_place`, if defined, is one
/// of them that may.
at::Tensor apart(const at::Tensor& input, const std::vector<at::Tensor>& outputs, const at::Tensor& in_place = {});

/// One input per rank, each apart from `output`, which may be exactly input number `own`.
std::vector<at::Tensor> apart_each(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int own);

/// The single element of `list`, checked; `what` names the list in the message.
const at::Tensor& only(const char* operation, const char* what, const std::vector<at::Tensor>& list);

/// The single list in `lists` with one checked tensor per rank.
const std::vector<at::Tensor>& one_per_rank(const char* operation, const char* what,
                                            const std::vector<std::vector<at::Tensor>>& lists, int size);
void check_one_per_rank(const char* operation, const char* what, const std::vector<at::Tensor>& list, int size);

void check_same_length(const char* operation, std::size_t outputs, std::size_t inputs);
void check_rank(const char* operation, const char* what, std::int64_t rank, int size);
void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b);
void check_same_dtype(const char* operation, const at::Tensor& a, const std::vector<at::Tensor>& all);

/// Equal numbers of elements; `what` says of which two.
void check_numel(const char* operation, const char* what, std::int64_t expected, std::int64_t found);

/// Elements that each rank's part of the flat `tensor` has: `splits` rows each, or an equal share when empty.
std::vector<std::int64_t> split_numels(const char* operation, const char* what, const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int size);

}  // namespace atl::pytorch
