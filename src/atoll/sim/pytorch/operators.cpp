// SPDX-License-Identifier: Apache-2.0
// The operators that a device must implement: making, viewing and resizing tensors, copies, and convolutions.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

using at::IntArrayRef;
using at::Tensor;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> where, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "a simulated device holds dense tensors only");
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> where, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only CPU tensors can be pinned");
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

void make_room(const Tensor& tensor) {
  const auto* const impl = tensor.unsafeGetTensorImpl();
  const auto needed = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(),
                                                       static_cast<std::size_t>(impl->storage_offset()));
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  if (needed > storage.nbytes()) resize_storage(storage, needed);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  make_room(self);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, std::int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || (stride.empty() && !size.empty())) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  make_room(self);
  return self;
}

Tensor& set_source_storage(Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  const at::Storage nothing(c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(),
                            true);
  return set_storage(self, nothing, 0, {0}, {});
}

at::Scalar local_scalar(const Tensor& self) {
  at::Scalar value;
  run_untimed(self.device().index(), [&] { value = at::native::_local_scalar_dense_cpu(host_view(self)); });
  return value;
}

/// Copies bytes between host and device, both dense with equal strides. Returns at once if the caller cannot tell the
/// difference.
void copy_bytes(const Tensor& from, const Tensor& to, bool may_return_early) {
  const auto bytes = static_cast<std::size_t>(from.nbytes());
  if (bytes == 0) return;
  const bool from_sim = from.device().type() == kSim;
  const c10::DeviceIndex index = (from_sim ? from : to).device().index();
  const Tensor& host = from_sim ? to : from;
  const auto* const source = static_cast<const std::byte*>(host_view(from).const_data_ptr());
  auto* const target = static_cast<std::byte*>(host_view(to).mutable_data_ptr());
  Stream& stream = stream_of(current_stream(index));
  // Pinned memory is kept until the copy is done. The tensor is not, because the stream's thread must never be the one
  // that destroys a Python object. Nor is device memory, as on a real device: code that frees it early must name the
  // stream (record_stream).
  const auto memory = pinned_memory(host.const_data_ptr());
  const auto copy = [memory, source, target, bytes, done = std::size_t{0}](double share) mutable {
    const auto upto = share >= 1 ? bytes : static_cast<std::size_t>(share * static_cast<double>(bytes));
    std::memcpy(target + done, source + done, upto - done);
    done = upto;
  };
  stream.enqueue(copy, device(index).model().copy_time(bytes, memory != nullptr));
  if (!may_return_early || !memory) stream.synchronize();
}

/// Queues an operator on one device whose caller need not wait for it; `work` must own what it needs.
void queue_operator(c10::DeviceIndex index, std::string_view name, double bytes, std::function<void()> work) {
  const auto quietly = [work = std::move(work)] {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    work();
  };
  stream_of(current_stream(index)).run_or_enqueue(quietly, device(index).model().operator_time(name, 0, bytes));
}

Tensor& zero_(Tensor& self) {
  queue_operator(self.device().index(), "zero", static_cast<double>(self.nbytes()),
                 [view = host_view(self)] { view.zero_(); });
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  const bool from_sim = self.device().type() == kSim;
  const bool to_sim = to.device().type() == kSim;
  if (from_sim && to_sim) {
    const c10::DeviceIndex index = to.device().index();
    if (self.device() != to.device()) stream_of(current_stream(self.device().index())).synchronize();
    const double bytes = static_cast<double>(self.nbytes() + to.nbytes());
    queue_operator(index, "copy", bytes, [from = host_view(self), view = host_view(to)] { view.copy_(from); });
    return to;
  }
  const Tensor source = self.expand(to.sizes());
  const bool plain = source.scalar_type() == to.scalar_type() && source.is_non_overlapping_and_dense() &&
                     source.strides() == to.strides() && source.is_conj() == to.is_conj() &&
                     source.is_neg() == to.is_neg();
  if (plain) {
    copy_bytes(source, to, non_blocking);
    return to;
  }
  // Converted on the target, after a plain copy of dense bytes.
  const Tensor dense = source.resolve_conj().resolve_neg().contiguous();
  const Tensor there = at::empty(dense.sizes(), dense.options().device(to.device()));
  copy_bytes(dense, there, false);
  to.copy_(there);
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

void record_stream(Tensor& self, at::Stream stream) { note_use(self.storage().data_ptr(), stream); }

double convolution_flops(const Tensor& output, const Tensor& weight, bool transposed, const Tensor& input) {
  const double each = static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
  return 2.0 * static_cast<double>((transposed ? input : output).numel()) * each;
}

Tensor to_sim(const Tensor& host, at::Device where) {
  if (!host.defined()) return host;
  const Tensor made = at::empty_strided(host.sizes(), host.strides(), host.options().device(where));
  run_untimed(where.index(), [&] { host_view(made).copy_(host); });
  return made;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   std::int64_t groups) {
  Tensor result;
  const auto index = input.device().index();
  run_operator(index, [&] {
    const std::optional<Tensor> host_bias = bias && bias->defined() ? std::optional(host_view(*bias)) : std::nullopt;
    result = at::convolution(host_view(input), host_view(weight), host_bias, stride, padding, dilation, transposed,
                             output_padding, groups);
    const double bytes = static_cast<double>(input.nbytes() + weight.nbytes() + result.nbytes());
    return OperatorWork{"convolution", convolution_flops(result, weight, transposed, input), bytes};
  });
  return to_sim(result, input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                                                        IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, std::int64_t groups,
                                                        std::array<bool, 3> wanted) {
  std::tuple<Tensor, Tensor, Tensor> results;
  const auto index = input.device().index();
  const double each = convolution_flops(gradient, weight, transposed, input);
  const double flops = each * (static_cast<double>(wanted[0]) + static_cast<double>(wanted[1]));
  const double bytes = static_cast<double>(gradient.nbytes() + 2 * input.nbytes() + 2 * weight.nbytes());
  run_operator(index, [&] {
    const std::int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
    results = at::convolution_backward(host_view(gradient), host_view(input), host_view(weight),
                                       at::OptionalIntArrayRef({outputs}), stride, padding, dilation, transposed,
                                       output_padding, groups, wanted);
    return OperatorWork{"convolution_backward", flops, bytes};
  });
  auto& [for_input, for_weight, for_bias] = results;
  const auto where = input.device();
  return {to_sim(for_input, where), to_sim(for_weight, where), to_sim(for_bias, where)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage", &set_source_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_empty);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("view.dtype", &at::native::view_dtype);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("zero_", &zero_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("record_stream", &record_stream);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

// The copies above handle these bits. PyTorch would clone the source to resolve them, which copies, and so recurse
// forever.
void leave_to_copies(torch::Library& library) {
  for (const char* name : {"_copy_from", "_copy_from_and_resize"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { leave_to_copies(library); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { leave_to_copies(library); }

}  // namespace
}  // namespace atl::sim

// torch.autocast("sim"): the operators that other accelerators run in lower precision, in float32 or in the widest
// type.
namespace at::autocast {

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FULL_PRECISION_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macros register with "m"
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FULL_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULL_PRECISION_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
}

}  // namespace at::autocast
