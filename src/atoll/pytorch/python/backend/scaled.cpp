// SPDX-License-Identifier: Apache-2.0
// Averages, and sums with a factor, with libraries that only add: the device scales before or after the sum.
#include <ATen/core/LegacyTypeDispatch.h>

#include "atoll/pytorch/python/backend/pass_through.h"

namespace atl::pytorch {

std::shared_ptr<Library> PassThrough::for_scaled(const at::Tensor& tensor, const Reduction& how) const {
  if (!island_->has_all_ranks() || tensor.device().is_cpu()) return nullptr;
  auto library = island_->get();
  const bool is_device = library && tensor.device().type() == library->device_type();
  const bool scales = how.op == collectives::ReduceOp::kAvg || how.op == collectives::ReduceOp::kPremulSum;
  if (!is_device || !scales) return nullptr;
  const auto type = tensor.scalar_type();
  return !library->reduces(how.op, type) && library->folds(how.op, type) ? library : nullptr;
}

void PassThrough::scale(const std::shared_ptr<StagedOperation>& operation, const Reduction& how, const Tensors& inputs,
                        const Tensors& outputs, const std::function<WorkPtr()>& sum) const {
  const c10::Stream stream = operation->streams().out();
  const c10::StreamGuard guard(stream);
  operation->follow_caller(stream);
  if (how.op == collectives::ReduceOp::kPremulSum) {
    for (at::Tensor tensor : inputs) tensor.mul_(how.factor);
    return operation->outward().issue(sum);
  }
  operation->outward().issue(sum, [&, size = open_->group()->size()] {
    for (at::Tensor tensor : outputs) {
      at::isIntegralType(tensor.scalar_type(), true) ? tensor.div_(size, "trunc") : tensor.div_(size);
    }
  });
}

WorkPtr PassThrough::issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain,
                                  const About& about, const Reduction& how, const Tensors& inputs,
                                  const Tensors& outputs, const std::function<WorkPtr()>& sum) {
  begin(plain);
  regions_.flush();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Operands operands;
  for (const at::Tensor& tensor : inputs) operands.read(tensor);
  for (const at::Tensor& tensor : outputs) operands.read(tensor);
  const auto streams = staging_.streams(operands.device());
  const auto operation =
      std::make_shared<StagedOperation>(std::move(operands), streams, &CopyStreams::out, library.get(), 1);
  auto work = open_->new_work(about, operation, inputs, outputs);
  regions_.note(work);
  work->expect_parts(1);
  try {
    scale(operation, how, inputs, outputs, sum);
  } catch (...) {
    island_->explain(std::current_exception());
  }
  operation->chunk_stored();
  island_->watch_results(operation, about.timeout);
  work->part_done(nullptr);
  fill(plain, *work);
  return work;
}

}  // namespace atl::pytorch
