// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::infer {

/// The first of the descriptors that a server starts a worker process with: its socket, its model's weights, memory for
/// the payloads that it gets, and memory for those that it sends (payload_ring.h).
inline constexpr int kFirstWorkerDescriptor = 3;
inline constexpr int kWorkerDescriptors = 4;

}  // namespace atl::infer
