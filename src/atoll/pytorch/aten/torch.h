// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything of PyTorch that more than one source of this folder needs, precompiled: these headers take most of the
// time it takes to build the folder. What differs between PyTorch versions is here and nowhere else.

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
