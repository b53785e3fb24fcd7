// SPDX-License-Identifier: Apache-2.0
// Communication operators called with tensors for which PyTorch has no kernel, or one that does nothing: sparse,
// quantized, nested, on device meta, ... They fail on the calling rank; if the backend is Atoll's, these kernels report
// it to the others.
#include <torch/library.h>

#include <string>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/backend/c10d_operators.h"

namespace atl::pytorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

std::string kind_of(DispatchKeySet keys) {
  const auto has = [&](DispatchKey key) { return keys.has(key); };
  if (has(DispatchKey::Quantized)) return "quantized";
  if (has(DispatchKey::NestedTensor)) return "nested";
  if (has(DispatchKey::Sparse) || has(DispatchKey::SparseCsr)) return "sparse";
  return "unusual (" + std::string(toString(keys.highestPriorityTypeId())) + ")";
}

void refuse(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  report_failures(op, *stack, atoll_of(op, *stack), [&] {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), " takes dense tensors with values, and was given a ",
                                kind_of(keys), " one");
  });
}

void refuse_meta(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (const auto backend = atoll_of(op, *stack, c10::kCPU)) {
    report_failures(op, *stack, backend, [&] {
      TORCH_CHECK_VALUE(false, op.schema().name(), ": got a tensor on device meta, which holds no values");
    });
  }
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// The tensors that these operators write to cannot be replaced by functional results; PyTorch's own error says the
// same.
void refuse_functional(const c10::OperatorHandle& op, DispatchKeySet /*keys*/, Stack* stack) {
  report_failures(op, *stack, atoll_of(op, *stack), [&] {
    TORCH_CHECK(false, "found a custom (non-ATen) operator whose output has alias annotations: ", op.schema(),
                ". Functional tensors can be given to operators whose results are new tensors");
  });
}

// Subclasses of nested tensors fail after this kernel.
void report_nested(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  report_failures(op, *stack, atoll_of(op, *stack),
                  [&] { op.redispatchBoxed(keys & c10::after_autograd_keyset, stack); });
}

template <auto* kernel, typename Names>
void take(torch::Library& library, const Names& names) {
  for (const char* name : names) library.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
}

// For all dispatch keys without a kernel of their own.
TORCH_LIBRARY_IMPL(c10d, CompositeExplicitAutograd, library) { take<&refuse>(library, kOperators); }
TORCH_LIBRARY_IMPL(c10d, AutogradNestedTensor, library) { take<&report_nested>(library, kOperators); }
// PyTorch has kernels for the key Meta itself.
TORCH_LIBRARY_IMPL(c10d, AutogradMeta, library) { take<&refuse_meta>(library, kOperators); }

void take_functional(torch::Library& library) {
  take<&refuse>(library, kFunctionalOperators);
  take<&refuse>(library, kFunctionalCopies);
}
// PyTorch composes these operators for all keys, so each key is named here.
TORCH_LIBRARY_IMPL(_c10d_functional, SparseCPU, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, SparseCUDA, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, SparseCsrCPU, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, SparseCsrCUDA, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, QuantizedCPU, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, QuantizedCUDA, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, NestedTensorCPU, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, NestedTensorCUDA, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, MkldnnCPU, library) { take_functional(library); }
TORCH_LIBRARY_IMPL(_c10d_functional, AutogradNestedTensor, library) {
  take<&report_nested>(library, kFunctionalOperators);
  take<&report_nested>(library, kFunctionalCopies);
}
TORCH_LIBRARY_IMPL(_c10d_functional, Functionalize, library) {
  take<&refuse_functional>(library, kFunctionalOperators);
}
TORCH_LIBRARY_IMPL(_c10d_functional, AutogradMeta, library) {
  // The others return meta tensors, which programs use to find shapes.
  take<&refuse_meta>(library, std::array{"all_gather_into_tensor_out", "reduce_scatter_tensor_out"});
}

}  // namespace
}  // namespace atl::pytorch
