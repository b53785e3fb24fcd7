// SPDX-License-Identifier: Apache-2.0
#pragma once

struct _ts;

namespace atl::pytorch {

/// Releases Python's GIL for its lifetime when this thread holds it; harmless without an interpreter. For waits in
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

/// When an interpreter exits, Python ends threads that ask for its GIL by unwinding them, through frames that need
/// Python or must not be left. Such a thread calls this instead, which blocks until the process is gone.
[[noreturn]] void stay();

}  // namespace atl::pytorch
