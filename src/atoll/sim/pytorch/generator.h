// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

namespace atl::sim {

/// Generators of a simulated device, which produce the numbers of PyTorch's CPU generator with the same seed.
at::Generator new_generator(c10::DeviceIndex index);
const at::Generator& default_generator(c10::DeviceIndex index);

/// Returns the CPU generator inside one that came from new_generator().
at::Generator host_generator(const at::Generator& generator);

}  // namespace atl::sim
