// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// RedisStore, and what lists the jobs of a Redis server.
void bind_redis(pybind11::module_& module);

}  // namespace atl::pytorch
