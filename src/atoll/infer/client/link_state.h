// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::infer {

/// The state of a robot's link to its server.
enum class LinkState {
  kConnecting,
  kOpening,  ///< the server is looking for the model
  kUploading,
  kWaiting,  ///< for the server to load the model, or for clients before this one
  kReady,
  kDraining,  ///< the server is shutting down
  kRefused,   ///< the server does not accept this model; retried from time to time
  kLost,
  kClosed,
};
const char* to_string(LinkState state) noexcept;

}  // namespace atl::infer
