// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/checks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/memory.h"
#include "atoll/pytorch/staging/overlap.h"
#include "atoll/pytorch/staging/plain.h"

namespace atl::pytorch {

void check_tensor(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": got an undefined tensor");
  TORCH_CHECK_VALUE(!tensor.is_meta(), operation, ": got a tensor on device meta, which holds no values");
  TORCH_CHECK_VALUE(!tensor.is_nested(), operation,
                    ": got a nested tensor; pass its values() and offsets(), or the tensors of unbind()");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, operation, ": got a tensor with layout ", tensor.layout(),
                    "; only dense tensors are accepted here: pass to_dense() of it");
  TORCH_CHECK_VALUE(!tensor.is_quantized(), operation, ": got a quantized tensor of dtype ",
                    dtype_name(tensor.scalar_type()), "; pass int_repr() of it, and its scale and zero point apart");
  TORCH_CHECK_VALUE(tensor._is_zerotensor() || has_memory(tensor), operation, ": got a tensor of shape ",
                    tensor.sizes(),
                    " without memory for its values: its storage was resized away, or it is a fake "
                    "tensor or a wrapper that stands for others");
}

void check_output(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor._is_zerotensor(), operation,
                    ": zeros without memory cannot be written; pass clone() of the tensor");
  TORCH_CHECK_VALUE(!overlaps_itself(tensor), operation, ": a tensor with sizes ", tensor.sizes(), " and strides ",
                    tensor.strides(),
                    " cannot be written, because some of its elements share memory; pass contiguous() "
                    "of it");
  TORCH_CHECK_VALUE(is_writable(tensor), operation,
                    ": a tensor cannot be written, because its memory is mapped for reading only; pass clone() of it");
}

void check_outputs(const char* operation, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) check_output(operation, tensor);
  const auto pair = overlapping_pair(tensors);
  TORCH_CHECK_VALUE(!pair, operation, ": outputs ", pair->first, " and ", pair->second,
                    " share memory, which cannot hold the values of both; pass tensors of their own");
}

bool is_part(const at::Tensor& part, const at::Tensor& whole, int place) {
  if (!is_plain(part) || !is_plain(whole)) return false;
  const auto* const begin = static_cast<const std::byte*>(whole.const_data_ptr());
  return part.const_data_ptr() == begin + static_cast<std::size_t>(place) * part.nbytes();
}

// A tensor that is not plain is copied anyway when it is read.
at::Tensor apart(const at::Tensor& input, const std::vector<at::Tensor>& outputs, const at::Tensor& in_place) {
  const bool is_overwritten =
      is_plain(input) && std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
        return !output.is_same(in_place) && overlap(input, output);
      });
  return is_overwritten ? input.detach().clone() : input;
}

std::vector<at::Tensor> apart_each(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int own) {
  std::vector<at::Tensor> list;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool in_place = i == static_cast<std::size_t>(own) && is_part(inputs[i], output);
    list.push_back(apart(inputs[i], {output}, in_place ? output : at::Tensor()));
  }
  return list;
}

void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), operation, ": the tensor list is empty");
  for (const at::Tensor& tensor : tensors) check_tensor(operation, tensor);
}

const at::Tensor& only(const char* operation, const char* what, const std::vector<at::Tensor>& list) {
  TORCH_CHECK_VALUE(list.size() == 1, operation, ": the ", what, " list must hold one tensor, it holds ", list.size());
  check_tensor(operation, list[0]);
  return list[0];
}

void check_one_per_rank(const char* operation, const char* what, const std::vector<at::Tensor>& list, int size) {
  TORCH_CHECK_VALUE(list.size() == static_cast<std::size_t>(size), operation, ": the ", what,
                    " list must hold one tensor for each of the ", size, " ranks, it holds ", list.size());
  for (const at::Tensor& tensor : list) check_tensor(operation, tensor);
}

const std::vector<at::Tensor>& one_per_rank(const char* operation, const char* what,
                                            const std::vector<std::vector<at::Tensor>>& lists, int size) {
  TORCH_CHECK_VALUE(lists.size() == 1, operation, ": expected one ", what, " list, got ", lists.size());
  check_one_per_rank(operation, what, lists[0], size);
  return lists[0];
}

void check_same_length(const char* operation, std::size_t outputs, std::size_t inputs) {
  TORCH_CHECK_VALUE(inputs > 0, operation, ": the tensor list is empty");
  TORCH_CHECK_VALUE(outputs == inputs, operation, ": got ", outputs, " outputs for ", inputs, " inputs");
}

void check_rank(const char* operation, const char* what, std::int64_t rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, operation, ": ", what, " ", rank, " is not a rank of this group of ",
                    size);
}

void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type(), operation, ": tensors must have equal dtypes, got ",
                    dtype_name(a.scalar_type()), " and ", dtype_name(b.scalar_type()));
}

void check_same_dtype(const char* operation, const at::Tensor& a, const std::vector<at::Tensor>& all) {
  for (const at::Tensor& b : all) check_same_dtype(operation, a, b);
}

void check_numel(const char* operation, const char* what, std::int64_t expected, std::int64_t found) {
  TORCH_CHECK_VALUE(expected == found, operation, ": ", what, " must have ", expected, " elements, it has ", found);
}

std::vector<std::int64_t> split_numels(const char* operation, const char* what, const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int size) {
  const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && rows % size == 0, operation, ": dimension 0 of the ", what, " (", rows,
                      ") cannot be divided equally among ", size, " ranks; pass split sizes");
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<std::size_t>(size), operation, ": got ", splits.size(), " ", what,
                    " split sizes for ", size, " ranks");
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  TORCH_CHECK_VALUE(sum == rows, operation, ": the ", what, " split sizes add up to ", sum, ", dimension 0 is ", rows);
  std::vector<std::int64_t> numels;
  for (const std::int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, operation, ": ", what, " split size ", split, " is negative");
    numels.push_back(rows == 0 ? 0 : split * (tensor.numel() / rows));
  }
  return numels;
}

}  // namespace atl::pytorch
