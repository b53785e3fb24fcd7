// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <mutex>
#include <optional>

namespace atl::pytorch {

/// Streams on which tensors of one accelerator are brought to the host and back, so that this runs beside the user's own
/// work: one for each direction of copies, one for each communicator of a library, one for its messages. Generic c10 calls only: the same
/// for every vendor. Thread-safe.
class CopyStreams {
 public:
  explicit CopyStreams(c10::Device device);

  c10::Device device() const noexcept { return device_; }
  c10::Stream in() const noexcept { return in_; }  ///< the library's part before the bridge
  c10::Stream to_host() const noexcept { return to_host_; }
  c10::Stream to_device() const noexcept { return to_device_; }
  c10::Stream out() const noexcept { return out_; }  ///< the library's part behind the bridge
  c10::Stream messages() const;                      ///< taken from the pool when it is first asked for

 private:
  c10::Device device_;
  c10::Stream in_;
  c10::Stream to_host_;
  c10::Stream to_device_;
  c10::Stream out_;
  mutable std::once_flag asked_for_messages_;
  mutable std::optional<c10::Stream> messages_;
};

/// One of those that PyTorch hands round on `device`. Throws c10::Error when it has none.
c10::Stream pool_stream(c10::Device device);

/// Those that the messages of all groups share on `device`; made at first use. Throws c10::Error when the device has no streams or events.
std::shared_ptr<const CopyStreams> copy_streams(c10::Device device);

/// The calling thread's.
c10::Stream current_stream(c10::Device device);

/// Whether what is issued on the stream is being recorded into a graph.
bool is_capturing(const c10::Stream& stream);

/// What runs on `stream` uses the tensor's memory, whoever frees it meanwhile.
void note_use(const at::Tensor& tensor, const c10::Stream& stream);

/// `bytes` of host memory from where the device copies without waiting for the processor, where the vendor has such memory.
at::Tensor pinned_memory(std::uint64_t bytes, c10::Device device);

}  // namespace atl::pytorch
