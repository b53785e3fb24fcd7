// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/watch.h"

namespace atl::pytorch {

/// What to say when an island's library has failed with `error`: the group's own account if there is one within `wait`,
/// because it names who has ended; else `error`, with which the group fails then.
std::exception_ptr account_of_library_failure(collectives::Group& group, const Error& error,
                                              std::chrono::milliseconds wait = std::chrono::seconds(1));

/// The calling thread is about to throw an exception of `group`. If the group has failed, that is how the thread learns of it,
/// and `watch`, if there is one, does not raise a second one in it.
void note_told(const std::weak_ptr<Watch>& watch, collectives::Group& group);

}  // namespace atl::pytorch
