// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/staged_operation.h"
#include "atoll/pytorch/staging/staging_clock.h"

namespace atl::pytorch {

/// An accelerator's message that passes through host memory in parts: while one part crosses the network, the next is
/// copied from the device or the previous one to it. To send, call load(), then part_is_loaded() for each part until it
/// returns true; to receive, use it as a landing and then call store(). Not thread-safe.
class StagedMessage final : public collectives::Landing {
 public:
  /// `memory`: of the operands of `operation`, of which this is the only chunk. `clock` times the copies.
  StagedMessage(std::shared_ptr<StagedOperation> operation, collectives::Segment memory,
                std::shared_ptr<StagingClock> clock);

  /// The message in host memory.
  collectives::Segment host() const noexcept { return host_; }

  /// The number of parts, at least one, and the end of each; all but the last have the same size.
  std::size_t parts() const noexcept;
  std::uint64_t end_of(std::size_t part) const noexcept;

  /// Issues the copies to the host; does not wait for the device.
  void load();
  /// Returns whether the host has that part. Throws c10::Error when the device has failed.
  bool part_is_loaded(std::size_t part) const { return loaded_[part].query(); }

  const std::shared_ptr<collectives::MessageDevice>& device() const noexcept override { return no_device_; }
  std::byte* on_device() override { return host_.data; }
  std::byte* on_host() override { return host_.data; }
  /// Issues the copies to the device of the parts that are complete.
  void arrived(std::uint64_t bytes) override;
  /// Issues the remaining copies, once all parts have arrived.
  void store();

 private:
  void copy_to_device(std::uint64_t end);
  static at::Tensor part_of(const at::Tensor& bytes, std::uint64_t begin, std::uint64_t end);

  const std::shared_ptr<StagedOperation> operation_;
  const collectives::Segment memory_;
  const std::shared_ptr<StagingClock> clock_;
  const std::shared_ptr<collectives::MessageDevice> no_device_;
  const at::Tensor pinned_;
  const collectives::Segment host_;
  const std::uint64_t part_bytes_;
  std::vector<c10::Event> loaded_;
  std::uint64_t stored_ = 0;
};

}  // namespace atl::pytorch
