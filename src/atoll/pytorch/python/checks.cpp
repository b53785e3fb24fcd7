// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/checks.h"

#include <numeric>

#include "atoll/pytorch/inner/dtype.h"

namespace atl::pytorch {

void check_tensor(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": got an undefined tensor");
  TORCH_CHECK_VALUE(!tensor.is_meta(), operation, ": got a tensor on device meta, which holds no values");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, operation, ": got a tensor with layout ", tensor.layout(),
                    "; only dense tensors are accepted here");
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
