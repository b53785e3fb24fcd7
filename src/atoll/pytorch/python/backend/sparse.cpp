// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/operands.h"

namespace atl::pytorch {
namespace {

// Facts about a tensor that all ranks exchange first: dtype, dimensions, entries, then the sizes.
constexpr std::int64_t kMaxDims = 12;
constexpr std::int64_t kFacts = 4;

class Exchange {
 public:
  Exchange(collectives::Group& group, std::chrono::milliseconds timeout) : group_(group), timeout_(timeout) {}

  /// Returns every rank's tensor; `shapes[r]` is the shape of rank r's.
  std::vector<at::Tensor> all_gather(const at::Tensor& mine, const std::vector<std::vector<std::int64_t>>& shapes) {
    Operands operands;
    collectives::Call call;
    call.operation = collectives::Operation::kAllGather;
    call.dtype = wire_type(mine.scalar_type());
    if (timeout_ >= std::chrono::milliseconds(0)) call.timeout = timeout_;
    call.input = {operands.read(mine)};
    std::vector<at::Tensor> all;
    for (const auto& shape : shapes) {
      all.push_back(at::empty(shape, mine.options()));
      call.output.push_back(operands.write(all.back()));
    }
    group_.run(call);
    return all;
  }

  std::size_t size() const { return static_cast<std::size_t>(group_.size()); }

 private:
  collectives::Group& group_;
  const std::chrono::milliseconds timeout_;
};

at::Tensor facts_of(const at::Tensor& tensor) {
  at::Tensor facts = at::zeros({kFacts + kMaxDims}, at::kLong);
  auto* values = facts.mutable_data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(tensor.scalar_type());
  values[1] = tensor.sparse_dim();
  values[2] = tensor.dense_dim();
  values[3] = tensor._nnz();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), values + kFacts);
  return facts;
}

// All ranks find the same difference, because all compare with rank 0.
void check_alike(const std::vector<at::Tensor>& facts) {
  const auto* first = facts[0].const_data_ptr<std::int64_t>();
  for (std::size_t r = 1; r < facts.size(); ++r) {
    const auto* other = facts[r].const_data_ptr<std::int64_t>();
    const bool alike =
        std::equal(first, first + 3, other) && std::equal(first + kFacts, first + kFacts + kMaxDims, other + kFacts);
    TORCH_CHECK_VALUE(alike, "all_reduce: the sparse tensors of rank 0 and rank ", r,
                      " differ in dtype, shape or number of sparse dimensions");
  }
}

}  // namespace

void all_reduce_sparse(collectives::Group& group, const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.layout() == at::kSparse,
                    "all_reduce: expected a sparse COO tensor in host memory, got ", tensor.layout(), " on device ",
                    tensor.device());
  TORCH_CHECK_VALUE(tensor.dim() <= kMaxDims, "all_reduce: a sparse tensor of ", tensor.dim(), " dimensions; at most ",
                    kMaxDims, " are supported");
  reduced_type("all_reduce", tensor, {});
  const at::AutoDispatchBelowAutograd no_autograd;
  const at::Tensor mine = tensor.coalesce();
  Exchange exchange(group, timeout);
  const auto facts =
      exchange.all_gather(facts_of(mine), std::vector<std::vector<std::int64_t>>(exchange.size(), {kFacts + kMaxDims}));
  check_alike(facts);

  const at::Tensor indices = mine.indices().contiguous();
  const at::Tensor values = mine.values().contiguous();
  std::vector<std::vector<std::int64_t>> index_shapes;
  std::vector<std::vector<std::int64_t>> value_shapes;
  for (const at::Tensor& theirs : facts) {
    const std::int64_t entries = theirs.const_data_ptr<std::int64_t>()[3];
    index_shapes.push_back({mine.sparse_dim(), entries});
    value_shapes.push_back(values.sizes().vec());
    value_shapes.back()[0] = entries;
  }
  const auto all_indices = exchange.all_gather(indices, index_shapes);
  const auto all_values = exchange.all_gather(values, value_shapes);
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(all_indices[0], all_values[0], mine.sizes());
  for (std::size_t r = 1; r < facts.size(); ++r) {
    sum = sum.add(at::_sparse_coo_tensor_unsafe(all_indices[r], all_values[r], mine.sizes()));
  }
  tensor.copy_(sum.coalesce());
}

}  // namespace atl::pytorch
