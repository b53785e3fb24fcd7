// SPDX-License-Identifier: Apache-2.0
// Operators of c10d called with tensors that are lazily negated or conjugated, or zeros without memory. PyTorch would
// pass copies to the backend and lose their results: the schemas of most of these operators do not say that they write,
// and for the others it copies back before the operation is complete. Atoll takes the tensors themselves. Other
// backends keep PyTorch's behaviour.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/MathBitsFallback.h>
#include <torch/library.h>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/backend/c10d_operators.h"

namespace atl::pytorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

struct Negated final : at::native::MathOpFallback {
  Negated() : MathOpFallback(DispatchKey::Negative, "negation") {}
  bool is_bit_set(const at::Tensor& tensor) override { return tensor.is_neg(); }
};

struct Conjugated final : at::native::MathOpFallback {
  Conjugated() : MathOpFallback(DispatchKey::Conjugate, "conjugate") {}
  bool is_bit_set(const at::Tensor& tensor) override { return tensor.is_conj(); }
};

// Does what PyTorch's own fallback, which no header declares, does for operators whose schema names no aliases.
struct Zeros {
  static constexpr DispatchKey key = DispatchKey::ZeroTensor;

  static at::Tensor made(const at::Tensor& tensor) {
    return tensor._is_zerotensor() ? at::zeros({}, tensor.options()).expand(tensor.sizes()) : tensor;
  }

  void fallback_impl(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const std::size_t first = stack->size() - op.schema().arguments().size();
    for (std::size_t i = first; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        value = made(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(made(tensor));
        value = std::move(list);
      }
    }
    op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key), stack);
  }
};

template <typename Fallback>
void dispatch(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  Fallback fallback;
  const auto backend = atoll_of(op, *stack);
  if (!backend) return fallback.fallback_impl(op, keys, stack);
  report_failures(op, *stack, backend,
                  [&] { op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, fallback.key), stack); });
}

// The operator waits for the content of its argument's memory, so a copy cannot replace it, whatever the backend.
template <typename Fallback>
void wait(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, Fallback().key), stack);
}

template <typename Fallback>
torch::CppFunction dispatched() {
  return torch::CppFunction::makeFromBoxedFunction<&dispatch<Fallback>>();
}

template <typename Fallback>
void take_over(torch::Library& library) {
  for (const char* name : kOperators) library.impl(name, dispatched<Fallback>());
}

template <typename Fallback>
void take_over_functional(torch::Library& library) {
  for (const char* name : kFunctionalOperators) library.impl(name, dispatched<Fallback>());
  library.impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait<Fallback>>());
}

TORCH_LIBRARY_IMPL(c10d, Negative, library) { take_over<Negated>(library); }
TORCH_LIBRARY_IMPL(c10d, Conjugate, library) { take_over<Conjugated>(library); }
TORCH_LIBRARY_IMPL(c10d, ZeroTensor, library) { take_over<Zeros>(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, Negative, library) { take_over_functional<Negated>(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, Conjugate, library) { take_over_functional<Conjugated>(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, ZeroTensor, library) { take_over_functional<Zeros>(library); }

}  // namespace
}  // namespace atl::pytorch
