// SPDX-License-Identifier: Apache-2.0
// Averages, and sums with a factor, by libraries that only add: the device scales before or behind them.
#include <ATen/core/LegacyTypeDispatch.h>

#include "atoll/pytorch/python/backend.h"
#include "atoll/pytorch/python/backend_pass.h"

namespace atl::pytorch {

/// The library of an island with all ranks, when it cannot do `how` but its sums can be scaled to it. An answer that all ranks
/// share.
std::shared_ptr<Library> BackendAtoll::scaling_library(const at::Tensor& tensor, const Reduction& how) const {
  if (!has_whole_library_.load(std::memory_order_relaxed) || tensor.device().is_cpu()) return nullptr;
  auto library = this->library();
  const bool is_device = library && tensor.device().type() == library->device_type();
  const bool scales = how.op == collectives::ReduceOp::kAvg || how.op == collectives::ReduceOp::kPremulSum;
  if (!is_device || !scales) return nullptr;
  const auto type = tensor.scalar_type();
  return !library->reduces(how.op, type) && library->folds(how.op, type) ? library : nullptr;
}

/// `sum(inner)` issues the library's sum; `inputs`, which it reads, may be changed before, and `outputs` are divided behind it.
BackendAtoll::WorkPtr BackendAtoll::pass_scaled(const Operation& about, const std::shared_ptr<Library>& library,
                                                const Reduction& how, const Tensors& inputs, const Tensors& outputs,
                                                const std::function<WorkPtr(c10d::Backend&)>& sum) {
  begin_passing();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Operands operands;
  for (const at::Tensor& tensor : inputs) operands.read(tensor);
  for (const at::Tensor& tensor : outputs) operands.read(tensor);
  const auto streams = passage(operands.device())->streams();
  const auto trip = std::make_shared<Trip>(std::move(operands), streams, library->name(), 1);
  auto work = new_work(about, group(), trip, inputs, outputs);
  note_if_coalescing(work);
  work->expect_parts(1);
  std::exception_ptr failure;
  try {
    const c10::Stream stream = trip->streams().out();
    const c10::StreamGuard guard(stream);
    trip->follow_caller(stream);
    const bool multiplies = how.op == collectives::ReduceOp::kPremulSum;
    if (multiplies) {
      for (at::Tensor tensor : inputs) tensor.mul_(how.factor);
    }
    trip->outward().issue([&] { return sum(library->in()); },
                          [&] {
                            for (at::Tensor tensor : outputs) {
                              if (multiplies) break;
                              at::isIntegralType(tensor.scalar_type(), true) ? tensor.div_(size_, "trunc")
                                                                             : tensor.div_(size_);
                            }
                          });
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) explain(failure);
  trip->piece_stored();
  watch_results(
      c10::weak_intrusive_ptr<BackendAtoll>(c10::intrusive_ptr<BackendAtoll>::unsafe_reclaim_from_nonowning(this)),
      trip, about.timeout);
  work->part_done(nullptr);
  return work;
}

}  // namespace atl::pytorch
