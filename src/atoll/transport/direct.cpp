// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/direct.h"

namespace atl::transport {

const char* to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost: return "host";
    case MemoryKind::kCuda: return "cuda";
    case MemoryKind::kRocm: return "rocm";
  }
  return "unknown";
}

}  // namespace atl::transport
