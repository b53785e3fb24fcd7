// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include "atoll/sim/device/stream.h"

namespace atl::sim {

/// A stream for exclusive use. Streams live as long as the process, so they are reused: a lease takes an idle one, or a
/// new one. Thread-safe.
class StreamLease {
 public:
  explicit StreamLease(c10::DeviceIndex index);
  ~StreamLease();
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  const c10::Stream& get() const noexcept { return stream_; }
  Stream& queue() const { return *queue_; }

 private:
  c10::Stream stream_;
  Stream* queue_;
};

}  // namespace atl::sim
