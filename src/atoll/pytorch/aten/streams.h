// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <mutex>
#include <optional>

#include "atoll/core/deadline.h"

namespace atl::pytorch {

/// The streams that copy one accelerator's tensors to the host and back, concurrently with the user's own work: one for
/// each direction, one for each communicator of a library, and one for the library's messages. Uses only generic c10
/// calls, which are the same for every vendor. Thread-safe.
class CopyStreams {
 public:
  explicit CopyStreams(c10::Device device);

  c10::Device device() const noexcept { return device_; }
  c10::Stream in() const noexcept { return in_; }  ///< the library's part before the bridge
  c10::Stream to_host() const noexcept { return to_host_; }
  c10::Stream to_device() const noexcept { return to_device_; }
  c10::Stream out() const noexcept { return out_; }  ///< the library's part after the bridge
  c10::Stream messages() const;                      ///< taken from the pool at first use

 private:
  c10::Device device_;
  c10::Stream in_;
  c10::Stream to_host_;
  c10::Stream to_device_;
  c10::Stream out_;
  mutable std::once_flag messages_once_;
  mutable std::optional<c10::Stream> messages_;
};

/// Returns a stream of PyTorch's pool on `device`. Throws c10::Error if the device has no streams.
c10::Stream pool_stream(c10::Device device);

/// Returns the streams that the messages of all groups share on `device`, made at first use. Throws c10::Error if the
/// device has no streams or events.
std::shared_ptr<const CopyStreams> copy_streams(c10::Device device);

/// Returns the calling thread's current stream on `device`.
c10::Stream current_stream(c10::Device device);

/// Waits until the work that this thread has issued on the device is done, or the deadline. Returns whether it is done.
bool wait_for(c10::Device device, Deadline until = Deadline::never());

/// Throws c10::Error while the calling thread's current stream on `device` is being captured into a graph, which cannot
/// record what happens between ranks.
void refuse_capture(c10::Device device);

/// Keeps the tensor's memory alive for the work issued on `stream`, even if the tensor is freed before that has run.
void note_use(const at::Tensor& tensor, const c10::Stream& stream);

/// Allocates `bytes` of host memory, pinned if the vendor supports it, so that the device copies asynchronously.
at::Tensor pinned_memory(std::uint64_t bytes, c10::Device device);

}  // namespace atl::pytorch
