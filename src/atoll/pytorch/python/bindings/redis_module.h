// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds RedisStore and what lists the jobs of a Redis server to the module.
void bind_redis(pybind11::module_& module);

}  // namespace atl::pytorch
