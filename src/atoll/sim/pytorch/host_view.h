// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "atoll/sim/device/stream.h"

namespace atl::sim {

/// A CPU tensor over the same bytes as `tensor`, which lies on a simulated device, with its sizes and strides. Only for work
/// that the device's streams run; `tensor` must outlive it.
at::Tensor host_view(const at::Tensor& tensor);

/// Where the byte at `address` of any simulated device of this process can be read and written; nullptr for other addresses.
void* host_address(const void* address) noexcept;

/// Runs `work`, one operator that computes `flops` and touches `bytes`, on the current stream of device `index`.
void run_operator(c10::DeviceIndex index, double flops, double bytes, const std::function<void()>& work);

}  // namespace atl::sim
