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

/// Python ends a thread that asks for the GIL of an interpreter that ends, by unwinding it: through frames that need Python
/// or must not be left. Such a thread stays here instead, until the process is gone.
[[noreturn]] void stay();

}  // namespace atl::pytorch
