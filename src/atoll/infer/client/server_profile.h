// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "atoll/core/deadline.h"
#include "atoll/infer/client/client.h"
#include "atoll/infer/profile.h"

namespace atl::infer {

/// The profile that a ready server has measured, without its total, which the message does not hold.
Profile profile_of(const wire::Ready& ready);

/// Gets the times of the model's nodes on a server: connects, uploads what it lacks, waits until it has measured, and
/// says goodbye. `go_on` is called with the status ten times a second and returns whether to keep waiting. Throws
/// Error(kInvalidArgument) for an invalid address, kRefused where the server refuses the model, kUnavailable where it
/// cannot be reached, the error that ended the connection, kTimeout at the deadline, kAborted where `go_on` returns
/// false, and whatever `go_on` throws.
Profile profile_of_server(const ClientOptions& options, const ModelFiles& files, Deadline deadline,
                          const std::function<bool(const LinkStatus&)>& go_on = {});

}  // namespace atl::infer
