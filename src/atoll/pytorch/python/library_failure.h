// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "atoll/collectives/group.h"

namespace atl::pytorch {

/// What to say when an island's library has failed with `error`: the group's own account if there is one within a second,
/// because it names who has ended; else `error`, with which the group fails then.
std::exception_ptr account_of_library_failure(collectives::Group& group, const Error& error);

}  // namespace atl::pytorch
