// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/staging_clock.h"
#include "atoll/pytorch/staging/trip.h"

namespace atl::pytorch {

/// An accelerator's message by way of the host, in parts: while one crosses the network, the next comes from the device and
/// the one before goes to it. Either load(), then part_is_loaded() of each until true, or a landing and then store(). Not
/// thread-safe.
class StagedMessage final : public collectives::Landing {
 public:
  /// `memory`: of the operands of `trip`, whose only piece this is. `clock` times the copies.
  StagedMessage(std::shared_ptr<Trip> trip, collectives::Segment memory, std::shared_ptr<StagingClock> clock);

  /// The message on the host.
  collectives::Segment host() const noexcept { return host_; }

  /// Parts: one at least, all of one size but the last.
  std::size_t parts() const noexcept;
  std::uint64_t end_of(std::size_t part) const noexcept;

  /// Issues the way to the host; does not wait for the device.
  void load();
  /// Whether the host has that part. Throws c10::Error when the device has failed.
  bool part_is_loaded(std::size_t part) const { return loaded_[part].query(); }

  const std::shared_ptr<collectives::MessageDevice>& device() const noexcept override { return no_device_; }
  std::byte* on_device() override { return host_.data; }
  std::byte* on_host() override { return host_.data; }
  /// Issues the rest of the way of the parts that are whole.
  void arrived(std::uint64_t bytes) override;
  /// All have come: issues the rest.
  void store();

 private:
  void copy_to_device(std::uint64_t end);
  static at::Tensor part_of(const at::Tensor& bytes, std::uint64_t begin, std::uint64_t end);

  const std::shared_ptr<Trip> trip_;
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
