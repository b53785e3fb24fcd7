// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/operands.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "atoll/sim/library/reduce.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

// The types that NCCL has.
std::optional<DataType> data_type(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Bool: return DataType::kBool;
    case at::ScalarType::Byte: return DataType::kUInt8;
    case at::ScalarType::Char: return DataType::kInt8;
    case at::ScalarType::Int: return DataType::kInt32;
    case at::ScalarType::Long: return DataType::kInt64;
    case at::ScalarType::Half: return DataType::kFloat16;
    case at::ScalarType::BFloat16: return DataType::kBFloat16;
    case at::ScalarType::Float: return DataType::kFloat32;
    case at::ScalarType::Double: return DataType::kFloat64;
    case at::ScalarType::Float8_e4m3fn:
    case at::ScalarType::Float8_e5m2: return DataType::kBytes;
    default: return std::nullopt;
  }
}

// As PyTorch refuses them for NCCL: by a TypeError, but for operations that it makes of messages.
DataType checked_type(Operation operation, const char* name, at::ScalarType type) {
  const auto known = data_type(type);
  const bool is_of_messages =
      operation == Operation::kAllToAll || operation == Operation::kGather || operation == Operation::kScatter;
  TORCH_CHECK(known.has_value() || !is_of_messages, name, ": simccl has no dtype ", type, "; pass a view of another");
  TORCH_CHECK_TYPE(known.has_value(), name, ": simccl has no dtype ", type, "; pass a view of another");
  return *known;
}

const char* name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::BAND: return "BAND";
    case c10d::ReduceOp::BOR: return "BOR";
    case c10d::ReduceOp::BXOR: return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM: return "PREMUL_SUM";
    default: return "an unknown operation";
  }
}

std::uint64_t total(const std::vector<Region>& regions) {
  return std::accumulate(regions.begin(), regions.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Region& region) { return sum + region.bytes; });
}

}  // namespace

Region Operands::take(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), name_, ": got an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device().type() == kSim, name_, ": simccl works on tensors of device sim, got one on ",
                    tensor.device(), "; move it there or use another backend for it");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name_, ": got a tensor with layout ", tensor.layout(),
                    "; only dense tensors are accepted");
  TORCH_CHECK_VALUE(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), name_,
                    ": tensors must be contiguous, got one with sizes ", tensor.sizes(), " and strides ",
                    tensor.strides(), "; pass tensor.contiguous()");
  TORCH_CHECK_VALUE(index_ < 0 || index_ == tensor.device().index(), name_,
                    ": tensors of one call must be on one device, got sim:", static_cast<int>(index_), " and ",
                    tensor.device());
  TORCH_CHECK_VALUE(type_ == at::ScalarType::Undefined || type_ == tensor.scalar_type(), name_,
                    ": tensors must have equal dtypes, got ", type_, " and ", tensor.scalar_type());
  index_ = tensor.device().index();
  type_ = tensor.scalar_type();
  call_.dtype = checked_type(call_.operation, name_, type_);
  tensors_.push_back(tensor);
  if (tensor.numel() == 0) return {index_, 0, 0};
  return {index_, device(index_).memory().offset_of(tensor.const_data_ptr()), tensor.nbytes()};
}

void Operands::read(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) read(tensor);
}

void Operands::write(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) write(tensor);
}

std::vector<Region> Operands::cut(const char* what, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                  int size) {
  const Region whole = take(tensor);
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::uint64_t> parts(ranks, whole.bytes / ranks);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.numel() % size == 0, name_, ": the ", what, " of ", tensor.numel(),
                      " elements cannot be divided equally among ", size, " ranks");
  } else {
    const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    TORCH_CHECK_VALUE(splits.size() == ranks, name_, ": got ", splits.size(), " ", what, " split sizes for ", size,
                      " ranks");
    const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    const bool positive = std::all_of(splits.begin(), splits.end(), [](std::int64_t split) { return split >= 0; });
    TORCH_CHECK_VALUE(positive && sum == rows, name_, ": the ", what, " split sizes ", splits, " must add up to ", rows,
                      ", the size of dimension 0");
    const std::uint64_t row = rows == 0 ? 0 : whole.bytes / static_cast<std::uint64_t>(rows);
    for (std::size_t i = 0; i < ranks; ++i) parts[i] = static_cast<std::uint64_t>(splits[i]) * row;
  }
  std::vector<Region> regions;
  std::uint64_t first = whole.offset;
  for (const std::uint64_t part : parts) {
    regions.push_back({whole.device, part > 0 ? first : 0, part});
    first += part;
  }
  return regions;
}

void Operands::read_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size) {
  call_.input = cut("input", tensor, splits, size);
}

void Operands::write_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size) {
  call_.output = cut("output", tensor, splits, size);
}

void Operands::set_root(const char* what, std::int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, name_, ": ", what, " ", root, " is not a rank of this group of ", size);
  call_.root = static_cast<int>(root);
}

void Operands::set_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: call_.reduce_op = ReduceOp::kSum; break;
    case c10d::ReduceOp::AVG: call_.reduce_op = ReduceOp::kAvg; break;
    case c10d::ReduceOp::PRODUCT: call_.reduce_op = ReduceOp::kProduct; break;
    case c10d::ReduceOp::MIN: call_.reduce_op = ReduceOp::kMin; break;
    case c10d::ReduceOp::MAX: call_.reduce_op = ReduceOp::kMax; break;
    default: TORCH_CHECK_VALUE(false, name_, ": simccl reduces with SUM, AVG, PRODUCT, MIN and MAX, got ", name_of(op));
  }
  TORCH_CHECK_VALUE(can_reduce(call_.reduce_op, call_.dtype), name_, ": simccl has no ", to_string(call_.reduce_op),
                    " of dtype ", type_, "; convert the tensor first");
}

void Operands::check_apart() const {
  for (const Region& in : call_.input) {
    const bool apart = std::ranges::none_of(call_.output, [&](const Region& out) { return overlap(in, out); });
    TORCH_CHECK_VALUE(apart, name_, ": input and output must not share memory; pass a new tensor as output");
  }
}

void Operands::check_size(const char* what, const Region& expected, const Region& found) const {
  const auto width = element_size(call_.dtype);
  TORCH_CHECK_VALUE(expected.bytes == found.bytes, name_, ": ", what, " must have ", expected.bytes / width,
                    " elements, it has ", found.bytes / width);
}

std::uint64_t Operands::bytes() const noexcept { return std::max(total(call_.input), total(call_.output)); }

const at::Tensor& only(const char* name, const char* what, const std::vector<at::Tensor>& list) {
  TORCH_CHECK_VALUE(list.size() == 1, name, ": the ", what, " list must hold one tensor, it holds ", list.size());
  return list[0];
}

void check_one_per_rank(const char* name, const char* what, const std::vector<at::Tensor>& list, int size) {
  TORCH_CHECK_VALUE(list.size() == static_cast<std::size_t>(size), name, ": the ", what,
                    " list must hold one tensor for each of the ", size, " ranks, it holds ", list.size());
}

const std::vector<at::Tensor>& one_per_rank(const char* name, const char* what,
                                            const std::vector<std::vector<at::Tensor>>& lists, int size) {
  TORCH_CHECK_VALUE(lists.size() == 1, name, ": expected one ", what, " list, got ", lists.size());
  check_one_per_rank(name, what, lists[0], size);
  return lists[0];
}

void check_one_shape(const char* name, const at::Tensor& own, const std::vector<at::Tensor>& list) {
  for (const at::Tensor& each : list) {
    TORCH_CHECK_VALUE(each.sizes() == own.sizes(), name, ": simccl takes tensors of one shape, got ", own.sizes(),
                      " and ", each.sizes());
  }
}

bool overlap(const Region& a, const Region& b) noexcept {
  return a.device == b.device && a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

}  // namespace atl::sim
