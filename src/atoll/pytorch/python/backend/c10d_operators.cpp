// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/c10d_operators.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

using torch::jit::Stack;

// Returns the device type of the first tensor in the value, which may be a list of lists.
std::optional<c10::DeviceType> device_type_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device().type();
  if (!value.isList()) return std::nullopt;
  for (const c10::IValue& each : value.toListRef()) {
    if (const auto found = device_type_of(each)) return found;
  }
  return std::nullopt;
}

// Returns null if the operator has no argument of that name.
const c10::IValue* argument(const c10::OperatorHandle& op, const Stack& stack, const char* name) {
  const auto place = op.schema().argumentIndexWithName(name);
  if (!place) return nullptr;
  return &stack[stack.size() - op.schema().arguments().size() + static_cast<std::size_t>(*place)];
}

// Functional operators may name the group. Returns null if there is no such group, which the operator reports itself.
c10::intrusive_ptr<c10d::ProcessGroup> group_of(const c10::OperatorHandle& op, const Stack& stack) {
  const c10::IValue* value = argument(op, stack, "process_group");
  if (!value) value = argument(op, stack, "group_name");
  if (!value) return nullptr;
  if (!value->isString()) return value->toCustomClass<c10d::ProcessGroup>();
  try {
    return c10d::resolve_process_group(value->toStringRef());
  } catch (const c10::Error&) {
    return nullptr;
  }
}

// Returns whether the backend of `group` for these devices is Atoll's.
bool is_atoll(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::DeviceType type) {
  const auto devices = group->getDeviceTypes();
  const bool has_backend =
      std::any_of(devices.begin(), devices.end(), [&](const c10::Device& device) { return device.type() == type; });
  return has_backend && group->getBackend(type)->getBackendName() == "atoll";  // a debugging wrapper has that name too
}

// Several messages in one operator are not reported, because it is not known here which of them have been issued.
void report_refusal(const c10::OperatorHandle& op, const Stack& stack, BackendAtoll& backend, const std::string& why) {
  const std::string& name = op.schema().name();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("p2p")) return;
  const bool sends = has("send");
  if (!sends && !has("recv")) return backend.refuse(why);
  const c10::IValue* const peer = argument(op, stack, sends ? "dst" : "src");
  const c10::IValue* const tag = argument(op, stack, "tag");
  backend.refuse_message(peer ? static_cast<int>(peer->toInt()) : collectives::kAnySource,
                         tag ? static_cast<int>(tag->toInt()) : 0, sends, why);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> atoll_of(const c10::OperatorHandle& op, const Stack& stack,
                                           std::optional<c10::DeviceType> otherwise) {
  const auto group = group_of(op, stack);
  std::optional<c10::DeviceType> type = otherwise;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size() && !type; ++i) {
    type = device_type_of(stack[i]);
  }
  return group && type && is_atoll(group, *type) ? group->getBackend(*type) : nullptr;
}

void report_failures(const c10::OperatorHandle& op, const Stack& stack,
                     const c10::intrusive_ptr<c10d::Backend>& backend, const std::function<void()>& body) {
  auto* const own = dynamic_cast<BackendAtoll*>(backend.get());
  if (!own) return body();
  const Stack given = stack;  // `body` takes it
  const std::uint64_t before = BackendAtoll::entered_on_this_thread();
  try {
    body();
  } catch (...) {
    if (BackendAtoll::entered_on_this_thread() == before)
      report_refusal(op, given, *own, text_of(std::current_exception()));
    throw;
  }
}

}  // namespace atl::pytorch
