// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

#include "atoll/sim/device/stream.h"

namespace atl::sim {

/// Returns a CPU tensor over the same bytes as `tensor`, which is on a simulated device, with its sizes and strides.
/// Only for work that the device's streams run; `tensor` must outlive it.
at::Tensor host_view(const at::Tensor& tensor);

/// Returns where the byte at `address` of any simulated device of this process can be read and written; nullptr for
/// other addresses.
void* host_address(const void* address) noexcept;

/// The work of one operator, from which its time is modelled.
struct OperatorWork {
  std::string_view name{};  ///< such as "addmm"; empty for work that takes no modelled time
  double flops = 0;
  double bytes = 0;  ///< of memory traffic
};

/// Runs `work`, an operator that returns what it did, on the current stream of device `index`.
void run_operator(c10::DeviceIndex index, const std::function<OperatorWork()>& work);

/// Runs work that takes no modelled time in the same way.
void run_untimed(c10::DeviceIndex index, const std::function<void()>& work);

}  // namespace atl::sim
