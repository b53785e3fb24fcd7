// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::infer {

/// How a robot's link to its server is.
enum class LinkState {
  kConnecting,
  kOpening,  ///< the server looks for the model
  kUploading,
  kWaiting,  ///< for the server to load the model, or for others before this one
  kReady,
  kDraining,  ///< the server goes down in order
  kRefused,   ///< the server does not take this model; tried again now and then
  kLost,
  kClosed,
};
const char* to_string(LinkState state) noexcept;

}  // namespace atl::infer
