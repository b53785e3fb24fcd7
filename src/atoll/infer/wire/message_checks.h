// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/wire/messages.h"

namespace atl::infer::wire {

enum class Way {
  kOut,  ///< faults are Error(kInvalidArgument); sentences for people are not checked, because they are cut
  kIn,   ///< faults are Error(kProtocol)
};

/// Throws an Error that names message, field and value, unless every field is within its bounds.
void check(const Message& message, Way way);

}  // namespace atl::infer::wire
