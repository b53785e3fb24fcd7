// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace atl::pytorch {

/// The streams on which this process copies between one accelerator and host memory, one for each direction, so that copies
/// run beside the user's own work. Generic c10 calls only: the same for every vendor. Thread-safe.
class CopyStreams {
 public:
  explicit CopyStreams(c10::Device device);

  c10::Device device() const noexcept { return device_; }
  c10::Stream to_host() const noexcept { return to_host_; }
  c10::Stream to_device() const noexcept { return to_device_; }

 private:
  c10::Device device_;
  c10::Stream to_host_;
  c10::Stream to_device_;
};

/// Those of `device`; made at first use. Throws c10::Error when the device has no streams or events.
std::shared_ptr<const CopyStreams> copy_streams(c10::Device device);

/// The device tensors of one operation and the host memory that stands for them. The order of calls: load and store for each
/// tensor, begin() on the caller's thread, is_loaded() until it is true, copy_back() once the host memory holds the results,
/// then wait_on_current_stream() wherever the results are used. None of them waits for the device.
class Staging {
 public:
  /// Contiguous host memory that will hold the values of `tensor`, which lies on an accelerator. Pinned where the vendor has such
  /// memory. Throws c10::ValueError when an earlier tensor lies on another device.
  at::Tensor load(const at::Tensor& tensor);

  /// Contiguous host memory whose content copy_back() brings to `tensor`; with `load`, it will hold the tensor's values first.
  at::Tensor store(const at::Tensor& tensor, bool load);

  bool is_used() const noexcept { return streams_ != nullptr; }
  bool has_results() const noexcept { return !stores_.empty(); }
  c10::Device device() const { return streams_->device(); }

  /// Issues the copies to the host, behind what the caller's current stream holds now. Throws c10::Error while that stream is
  /// being captured into a graph, which cannot hold what happens between hosts.
  void begin();

  bool is_loaded() const;

  /// Issues the copies to the device.
  void copy_back();

  /// Calls `action` while the stream on which the results arrive is current.
  template <typename Action>
  void on_arrival(Action&& action) const {
    const c10::StreamGuard guard(streams_->to_device());
    action();
  }

  /// Lets go of the tensors; copies under way keep what they need.
  void release();

  /// Makes the calling thread's current stream wait until the results have arrived. Only after copy_back().
  void wait_on_current_stream() const;

 private:
  void use(const at::Tensor& tensor);

  std::shared_ptr<const CopyStreams> streams_;
  std::vector<std::pair<at::Tensor, at::Tensor>> loads_;   // device, host
  std::vector<std::pair<at::Tensor, at::Tensor>> stores_;  // device, host
  std::optional<c10::Event> begun_;
  std::optional<c10::Event> loaded_;
  std::optional<c10::Event> arrived_;
};

}  // namespace atl::pytorch
