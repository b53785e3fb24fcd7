// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/operator_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/pytorch/aten/arena.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/named.h"
#include "atoll/pytorch/aten/part_kernels.h"
#include "atoll/pytorch/aten/plain_state.h"
#include "atoll/pytorch/aten/streams.h"

namespace atl::pytorch {
namespace {

using infer::Change;
using infer::HostBytes;
using infer::Value;

constexpr const char* kAdvice =
    ": call the module itself with these inputs; if that fails too, change the inputs, else report this line as a bug "
    "in Atoll";
// That of PyTorch's own memory: kernels may choose other code paths for less aligned memory.
constexpr std::uintptr_t kAlignment = 64;

// The place of operands among the arguments: one tensor, or a list in which some may be absent.
struct Slot {
  std::size_t argument = 0;
  std::optional<infer::TensorIds> list;
  bool has_optionals = false;
};

class AtenCall final : public infer::Call {
 public:
  AtenCall(const infer::Graph& graph, const infer::Node& node, c10::OperatorHandle found, c10::Device device)
      : name(infer::described(graph, node)), handle(std::move(found)), is_list(node.is_list) {
    const auto& arguments = handle.schema().arguments();
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      constants.push_back(ivalue_of(arguments[i], node.args[i], device));
      if (std::holds_alternative<infer::TensorId>(node.args[i])) slots.push_back({i, std::nullopt, false});
      const auto* list = std::get_if<infer::TensorIds>(&node.args[i]);
      if (list != nullptr) slots.push_back({i, *list, is_list_of_optionals(arguments[i])});
    }
    if (device.is_cpu()) part = part_kernel_of(graph, node);
  }

  const std::string name;
  const c10::OperatorHandle handle;
  const bool is_list;
  std::vector<c10::IValue> constants;  // empty where operands go
  std::vector<Slot> slots;
  PartKernel part;
};

// Operators that depend on an operand's memory layout, which the runner chooses.
bool depends_on_layout(const std::string& op) {
  static const std::set<std::string> kNames{
      "aten::_resize_output", "aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter", "aten::resize",
      "aten::resize_as",      "aten::set"};
  return kNames.contains(op);
}

// Throws Error(kProtocol) unless the node is a call of this operator.
void check_schema(const std::string& where, const infer::Node& node, const c10::FunctionSchema& schema) {
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::kProtocol, where + " " + what); };
  if (schema.is_mutable()) refuse("changes its arguments, which is not allowed in a graph");
  if (depends_on_layout(node.op))
    refuse("depends on its operand's memory layout: export the model again with this version of Atoll");
  if (node.args.size() != schema.arguments().size()) {
    refuse("has " + std::to_string(schema.arguments().size()) + " arguments, not " + std::to_string(node.args.size()));
  }
  const auto& returns = schema.returns();
  if (node.is_list) {
    const bool is_one_list = returns.size() == 1 && returns[0].real_type()->kind() == c10::TypeKind::ListType;
    if (!is_one_list) refuse("does not return one list");
    return;
  }
  const bool are_tensors = std::all_of(returns.begin(), returns.end(), [](const c10::Argument& each) {
    return each.real_type()->kind() == c10::TypeKind::TensorType;
  });
  if (!are_tensors || returns.size() != node.outputs.size()) {
    refuse("does not return " + std::to_string(node.outputs.size()) + " tensors");
  }
}

std::vector<c10::IValue> stack_of(const AtenCall& call, std::span<const Value> operands) {
  std::vector<c10::IValue> stack = call.constants;
  std::size_t next = 0;
  const auto take = [&]() -> const at::Tensor& {
    if (next == operands.size()) throw Error(ErrorKind::kInternal, call.name + " has too few operands");
    return tensor_of(operands[next++]);
  };
  for (const Slot& slot : call.slots) {
    if (!slot.list) {
      stack[slot.argument] = take();
    } else if (slot.has_optionals) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& id : slot.list->ids) list.push_back(id ? std::optional(take()) : std::nullopt);
      stack[slot.argument] = std::move(list);
    } else {
      c10::List<at::Tensor> list;
      for (std::size_t i = 0; i < slot.list->ids.size(); ++i) list.push_back(take());
      stack[slot.argument] = std::move(list);
    }
  }
  if (next != operands.size()) throw Error(ErrorKind::kInternal, call.name + " has too many operands");
  return stack;
}

class AtenRunner final : public infer::OperatorRunner {
 public:
  explicit AtenRunner(c10::Device device) : device_(device) {}

  std::unique_ptr<infer::Call> prepare(const infer::Graph& graph, const infer::Node& node) override {
    c10::OperatorName name(node.op, node.overload);
    const bool is_view = node.op == "aten::view" && node.overload.empty();
    if (is_view || node.op == "aten::_unsafe_view") name.name = "aten::reshape";
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) {
      throw Error(ErrorKind::kUnavailable, infer::described(graph, node) + ": there is no operator " + node.name() +
                                               ": load the library that has it");
    }
    const std::string where = infer::described(graph, node);
    check_schema(where, node, handle->schema());
    try {
      const PlainState state;
      return std::make_unique<AtenCall>(graph, node, *handle, device_);
    } catch (const Error& error) {
      throw Error(error.kind(), where + ": " + error.what());
    }
  }

  std::vector<Value> run(const infer::Call& prepared, std::span<const Value> operands,
                         std::span<const Change> changes) override {
    const auto& call = static_cast<const AtenCall&>(prepared);
    return named(
        call.name,
        [&] {
          const PlainState state;
          const c10::DeviceGuard guard(device_);
          const ArenaScope arena;
          std::vector<c10::IValue> stack = stack_of(call, operands);
          const auto& arguments = call.handle.schema().arguments();
          for (const Change& change : changes) {
            stack.at(change.argument) = ivalue_of(arguments.at(change.argument), change.value, device_);
          }
          if (std::optional<at::Tensor> part = run_part(call.part, stack))
            return std::vector{value_of(std::move(*part))};
          call.handle.callBoxed(stack);
          std::vector<Value> made;
          if (call.is_list) {
            for (at::Tensor& tensor : stack.at(0).toTensorVector()) made.push_back(value_of(std::move(tensor)));
          } else {
            for (c10::IValue& value : stack) made.push_back(value_of(std::move(value).toTensor()));
          }
          return made;
        },
        kAdvice);
  }

  Value from_host(const infer::Tensor& type, const HostBytes& bytes) override {
    if (static_cast<std::int64_t>(bytes.bytes.size()) != type.bytes()) {
      throw Error(ErrorKind::kInvalidArgument, "a tensor of " + std::to_string(type.bytes()) +
                                                   " bytes cannot be made from " + std::to_string(bytes.bytes.size()) +
                                                   " bytes");
    }
    const auto is_neither = [](std::byte value) { return value > std::byte{1}; };
    if (type.dtype == infer::Dtype::kBool && std::any_of(bytes.bytes.begin(), bytes.bytes.end(), is_neither)) {
      throw Error(ErrorKind::kInvalidArgument, "a tensor of booleans must have no bytes other than 0 and 1");
    }
    return named("copying a tensor from host memory", [&] {
      const PlainState state;
      const auto options = at::TensorOptions().dtype(scalar_type_of(type.dtype));
      if (bytes.bytes.empty()) return value_of(at::empty(type.shape, options.device(device_)));
      const bool is_aligned = reinterpret_cast<std::uintptr_t>(bytes.bytes.data()) % kAlignment == 0;
      if (device_.is_cpu() && !is_aligned) {
        at::Tensor copy = at::empty(type.shape, options);
        std::memcpy(copy.mutable_data_ptr(), bytes.bytes.data(), bytes.bytes.size());
        return value_of(std::move(copy));
      }
      // It is never written to: see DeviceTensor.
      void* const address = const_cast<std::byte*>(bytes.bytes.data());
      at::Tensor here = at::from_blob(
          address, type.shape, [owner = bytes.owner](void*) {}, options);
      return value_of(device_.is_cpu() ? std::move(here) : here.to(device_));
    });
  }

  HostBytes to_host(const Value& value) override {
    return named("copying a tensor to host memory", [&]() -> HostBytes {
      const PlainState state;
      const auto host = std::make_shared<const at::Tensor>(on_host(tensor_of(value)));
      return {{static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes()}, host};
    });
  }

  infer::Tensor type_of(const Value& value) const override {
    const at::Tensor& tensor = tensor_of(value);
    return {dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
  }

  Value narrow(const Value& value, int dim, Region rows) override {
    if (rows.begin == 0 && tensor_of(value).size(dim) == rows.end) return value;
    return named("taking rows of a tensor", [&] {
      const PlainState state;
      return value_of(tensor_of(value).narrow(dim, rows.begin, rows.size()));
    });
  }

  Value join(std::span<const Value> parts, int dim) override {
    if (parts.size() == 1) return parts.front();
    return named("concatenating tensors", [&] {
      const PlainState state;
      std::vector<at::Tensor> tensors;
      for (const Value& part : parts) tensors.push_back(tensor_of(part));
      return value_of(at::cat(tensors, dim));
    });
  }

  Value pad(const Value& value, int dim, std::int64_t low, std::int64_t high, double fill) override {
    return named("padding a tensor", [&] {
      const PlainState state;
      const at::Tensor& tensor = tensor_of(value);
      std::vector<std::int64_t> sizes(2 * static_cast<std::size_t>(tensor.dim() - dim), 0);  // from the last dimension
      sizes[sizes.size() - 2] = low;
      sizes[sizes.size() - 1] = high;
      return value_of(at::constant_pad_nd(tensor, sizes, fill));
    });
  }

  bool wait_until(Deadline until) override {
    return named("waiting for the device", [&] { return wait_for(device_, until); });
  }

  std::string device() const override { return device_.str(); }

 private:
  // Copies through pinned memory, to which the device copies at its full rate.
  at::Tensor on_host(const at::Tensor& tensor) const {
    if (device_.is_cpu()) return tensor.contiguous();
    at::Tensor host = pinned_memory(tensor.nbytes(), device_).view(tensor.scalar_type()).view(tensor.sizes());
    host.copy_(tensor, /*non_blocking=*/true);
    wait_for(device_);
    return host;
  }

  c10::Device device_;
};

c10::Device device_from(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kInvalidArgument, "\"" + text + "\" is not a device: " + error.what_without_backtrace());
  }
}

}  // namespace

std::shared_ptr<infer::OperatorRunner> make_operator_runner(const std::string& device) {
  c10::Device place = device_from(device);
  if (place.is_cpu()) return std::make_shared<AtenRunner>(c10::Device(c10::kCPU));
  try {
    const c10::impl::VirtualGuardImpl guard(place.type());
    if (!place.has_index()) place.set_index(guard.getDevice().index());
    if (place.index() >= guard.deviceCount()) {
      throw Error(ErrorKind::kUnavailable, "there is no device " + place.str() + ": this machine has " +
                                               std::to_string(guard.deviceCount()) + " of this kind");
    }
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kUnavailable, "there is no device " + device + ": " + error.what_without_backtrace());
  }
  return std::make_shared<AtenRunner>(place);
}

}  // namespace atl::pytorch
