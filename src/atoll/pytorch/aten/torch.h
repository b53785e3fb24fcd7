// SPDX-License-Identifier: Apache-2.0
#pragma once

// The headers of PyTorch that several sources need, precompiled, because they take most of the build time. Differences
// between PyTorch versions are handled here and nowhere else.

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace atl::pytorch {

/// Carries the factor of PREMUL_SUM; newer releases keep this name as an alias.
using PremulFactor = c10d::NCCLPreMulSumSupplement;

}  // namespace atl::pytorch
