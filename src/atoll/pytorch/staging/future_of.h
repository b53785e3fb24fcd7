// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Null for kinds of works that have none: those whose operation only goes on while somebody waits, of which some say
/// that they have completed.
inline c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace atl::pytorch
