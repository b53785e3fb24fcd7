// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/sim/library/control.h"

namespace atl::sim {

/// Throws Error(kMismatch) that describes both calls unless `peer`, which published `theirs`, made the same call as
/// this `rank`, and the sizes that concern the two match.
void check_agreement(const Call& mine, int rank, int peer, const Half& theirs);

/// Checks a message that this `rank` receives from the sender of `theirs` in the same way.
void check_message(const Call& mine, int rank, const Half& theirs);

}  // namespace atl::sim
