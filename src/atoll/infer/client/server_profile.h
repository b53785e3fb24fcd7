// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "atoll/core/deadline.h"
#include "atoll/infer/client/client.h"
#include "atoll/infer/profile.h"

namespace atl::infer {

/// What a server that is ready has measured. It does not say its total.
Profile profile_of(const wire::Ready& ready);

/// Asks a server what the model's nodes take there: connects, uploads what it lacks, waits until it has measured, and says
/// goodbye. `go_on` hears how it stands, ten times a second, and says whether to wait any longer. Error(kInvalidArgument) for an
/// address that is none; kRefused where the server refuses the model; kUnavailable where it cannot be reached; what ended the
/// connection; kTimeout at the deadline; kAborted where `go_on` says no. What `go_on` throws goes to the caller.
Profile profile_of_server(const ClientOptions& options, const ModelFiles& files, Deadline deadline,
                          const std::function<bool(const LinkStatus&)>& go_on = {});

}  // namespace atl::infer
