// SPDX-License-Identifier: Apache-2.0
// Every operator without a kernel of its own runs PyTorch's CPU kernel on views of the device's memory.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

bool on_sim(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

/// One call of an operator with its arguments moved to the host and its results moved back.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), arguments_(op.schema().arguments().size()) {
    const auto first = stack_.size() - arguments_;
    for (std::size_t i = 0; i < arguments_; ++i) stack_[first + i] = to_host(stack_[first + i]);
    add_generator(first);
    if (index_ < 0) index_ = current_device();
  }

  void run() {
    const auto first = stack_.size() - arguments_;
    const double flops = this->flops(first);
    run_operator(index_, [this, flops] {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
      if (gives_views()) return OperatorWork{};
      return OperatorWork{name(), flops, bytes_ + new_bytes()};
    });
    take_over_resized();
    const std::size_t returns = op_.schema().returns().size();
    for (std::size_t i = stack_.size() - returns; i < stack_.size(); ++i) stack_[i] = to_device(stack_[i]);
  }

 private:
  at::Tensor view(const at::Tensor& tensor) {
    if (!on_sim(tensor)) return tensor;
    index_ = tensor.device().index();
    bytes_ += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
    at::Tensor host = host_view(tensor);
    originals_.emplace_back(host, tensor);
    return host;
  }

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return view(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(view(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(view(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == kSim) {
      index_ = value.toDevice().index();
      return c10::Device(c10::kCPU);
    }
    if (value.isGenerator() && value.toGenerator().device().type() == kSim) return host_generator(value.toGenerator());
    return value;
  }

  // Outputs are initially empty, and the operator resizes them.
  void take_over_resized() {
    for (const auto& [host, original] : originals_) {
      if (host.sizes() == original.sizes()) continue;
      original.resize_(host.sizes());
      run_untimed(index_, [&, &host = host, &original = original] { host_view(original).copy_(host); });
    }
  }

  // An operator without a generator argument draws from the device's generator.
  void add_generator(std::size_t first) {
    for (std::size_t i = 0; i < arguments_; ++i) {
      const auto& type = *op_.schema().arguments()[i].type();
      const bool wanted = type.kind() == c10::TypeKind::OptionalType &&
                          type.expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
      if (wanted && stack_[first + i].isNone()) stack_[first + i] = host_generator(default_generator(index_));
    }
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return moved(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(moved(tensor));
      return list;
    }
    return value;
  }

  // A returned argument is that argument; a view of one is a view on the device; all else is new.
  at::Tensor moved(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [host, original] : originals_) {
      if (host.is_same(result)) return original;
      if (host.has_storage() && host.storage().is_alias_of(result.storage()) && result.numel() > 0) {
        const auto distance =
            static_cast<const char*>(result.const_data_ptr()) - static_cast<const char*>(host.const_data_ptr());
        return original.as_strided(
            result.sizes(), result.strides(),
            original.storage_offset() + distance / static_cast<std::ptrdiff_t>(result.element_size()));
      }
    }
    if (!result.device().is_cpu() || !result.has_storage()) return result;
    const auto options = result.options().device(c10::Device(kSim, index_)).pinned_memory(false);
    const at::Tensor made = result.is_non_overlapping_and_dense()
                                ? at::empty_strided(result.sizes(), result.strides(), options)
                                : at::empty(result.sizes(), options);
    run_untimed(index_, [&] { host_view(made).copy_(result); });
    return made;
  }

  // Returns the name without the namespace and the suffix of in-place forms: "add" for "aten::add_".
  std::string_view name() const {
    std::string_view name = op_.schema().name();
    if (const auto colons = name.rfind("::"); colons != name.npos) name.remove_prefix(colons + 2);
    if (name.size() > 1 && name.back() == '_' && name.front() != '_') name.remove_suffix(1);
    return name;
  }

  bool gives_views() const {
    const auto& returns = op_.schema().returns();
    return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& each) {
      return each.alias_info() != nullptr && !each.alias_info()->isWrite();
    });
  }

  // Returns the bytes of results that are not arguments.
  double new_bytes() const {
    double bytes = 0;
    const auto& returns = op_.schema().returns();
    const auto first = stack_.size() - returns.size();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info() != nullptr || !stack_[first + i].isTensor()) continue;
      const at::Tensor& result = stack_[first + i].toTensor();
      if (result.defined()) bytes += static_cast<double>(result.numel()) * static_cast<double>(result.element_size());
    }
    return bytes;
  }

  double flops(std::size_t first) const {
    static const std::unordered_map<std::string_view, int> kProducts{
        {"mm", 0}, {"bmm", 0}, {"addmm", 1}, {"baddbmm", 1}};
    const auto found = kProducts.find(name());
    if (found == kProducts.end()) return 0;
    const auto a = static_cast<std::size_t>(found->second) + first;
    const at::Tensor left = stack_[a].toTensor();
    return 2.0 * static_cast<double>(left.numel()) * static_cast<double>(stack_[a + 1].toTensor().size(-1));
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const std::size_t arguments_;
  c10::DeviceIndex index_ = -1;
  double bytes_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> originals_;  // host view, tensor
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { HostCall(op, *stack).run(); }

}  // namespace

void* host_address(const void* address) noexcept {
  Device* const of = device_of(address);
  return of != nullptr ? of->memory().host_view(address) : nullptr;
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!on_sim(tensor)) return tensor;
  const auto options = tensor.options().device(c10::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  DeviceMemory& memory = device(tensor.device().index()).memory();
  TORCH_CHECK(memory.contains(tensor.const_data_ptr()), "sim: a tensor of shape ", tensor.sizes(), " on ",
              tensor.device(), " has no memory there: its storage was resized away, or it stands for zeros");
  at::Tensor view = at::from_blob(memory.host_view(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

void run_operator(c10::DeviceIndex index, const std::function<OperatorWork()>& work) {
  stream_of(current_stream(index)).run([&] {
    const OperatorWork done = work();
    if (done.name.empty()) return std::chrono::nanoseconds{};
    return device(index).model().operator_time(done.name, done.flops, done.bytes);
  });
}

void run_untimed(c10::DeviceIndex index, const std::function<void()>& work) {
  run_operator(index, [&] {
    work();
    return OperatorWork{};
  });
}

// PyTorch composes these of out= forms, which resize their result.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name : {"mse_loss", "smooth_l1_loss"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace atl::sim
