// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/link_state.h"

namespace atl::infer {

const char* to_string(LinkState state) noexcept {
  switch (state) {
    case LinkState::kConnecting: return "connecting";
    case LinkState::kOpening: return "opening";
    case LinkState::kUploading: return "uploading";
    case LinkState::kWaiting: return "waiting";
    case LinkState::kReady: return "ready";
    case LinkState::kDraining: return "draining";
    case LinkState::kRefused: return "refused";
    case LinkState::kLost: return "lost";
    case LinkState::kClosed: return "closed";
  }
  return "?";
}

}  // namespace atl::infer
