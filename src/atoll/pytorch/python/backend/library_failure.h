// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/watchdog.h"

namespace atl::pytorch {

/// Returns the error to report when an island's library has failed with `error`: the group's own error if there is one
/// within `wait`, because it names the rank that has ended; else `error`, with which the group then fails.
std::exception_ptr account_of_library_failure(collectives::Group& group, const Error& error,
                                              std::chrono::milliseconds wait = std::chrono::seconds(1));

/// Notes that the calling thread is about to throw an exception of `group`. If the group has failed, `watchdog` (may be
/// expired) does not raise a second exception in that thread.
void note_raised(const std::weak_ptr<Watchdog>& watchdog, collectives::Group& group);

}  // namespace atl::pytorch
