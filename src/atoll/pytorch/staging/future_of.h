// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Returns the work's future; null for kinds of works without one, whose operations make progress only while a thread
/// waits for them. Some of those report that they have completed when they have not.
inline c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace atl::pytorch
