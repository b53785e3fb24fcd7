// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/sim/library/control.h"

namespace atl::sim {

/// Throws Error(kMismatch) that describes both calls unless `peer`, which published `theirs`, called what this `rank` did, and the
/// sizes that concern the two fit.
void check_agreement(const Call& mine, int rank, int peer, const Half& theirs);

/// The same for a message that this `rank` receives from the sender of `theirs`.
void check_message(const Call& mine, int rank, const Half& theirs);

}  // namespace atl::sim
