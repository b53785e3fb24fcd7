// SPDX-License-Identifier: Apache-2.0
#pragma once

struct _ts;

namespace atl::pytorch {

/// Releases Python's GIL for its lifetime when this thread holds it; harmless where there is no interpreter. For waits in
/// destructors, which Python runs while it holds the GIL.
class ReleaseGil {
 public:
  ReleaseGil();
  ~ReleaseGil();
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  _ts* saved_ = nullptr;
};

}  // namespace atl::pytorch
