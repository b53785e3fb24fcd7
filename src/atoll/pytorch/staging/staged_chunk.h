// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "atoll/pytorch/staging/island_stage.h"
#include "atoll/pytorch/staging/staged_operation.h"
#include "atoll/pytorch/staging/staging_clock.h"

namespace atl::pytorch {

/// Host memory that chunks use one after another.
struct Slot {
  at::Tensor memory;                 // of bytes
  std::optional<c10::Event> vacant;  // reached when the previous chunk has left; unset if it has
};

/// One chunk of an operation: its copy to the host, the call that crosses the bridge from there, and the copy back.
/// Call load(), then is_loaded() until it returns true, then run the call, then store(). Not thread-safe. A chunk that
/// comes in parts crosses the bridge while other parts are copied in both directions; what a rank sends to itself stays
/// on the device.
class StagedChunk {
 public:
  /// `call`'s segments are memory of the operation's operands. Uses `slot` if the chunk fits, else memory of its own.
  /// `clock` times its copies.
  StagedChunk(std::shared_ptr<StagedOperation> operation, const StagingContext& context, const collectives::Call& call,
              Slot* slot, std::shared_ptr<StagingClock> clock);

  /// The call that crosses the bridge, on host memory.
  const collectives::Call& bridge_call() const noexcept { return bridge_; }

  /// Issues the copy to the host; does not wait for the device.
  void load();

  /// Returns whether the host memory holds the inputs; with a library on the CPU, waits for it. Throws atl::Error when
  /// the library has failed.
  bool is_loaded();

  /// Issues the copy back, or the rest of it.
  void store();

  /// Returns whether the call starts with the first part, polls for the others and reports what has crossed.
  bool comes_in_parts() const noexcept { return comes_in_parts_; }

  /// Returns whether the host memory holds the first `end` bytes of an input. Throws c10::Error when the device has
  /// failed.
  bool is_loaded(std::uint32_t segment, std::uint64_t end);

  /// Issues the copy back of the parts of an output that are complete.
  void arrived(std::uint32_t segment, std::uint64_t end);

 private:
  std::uint64_t lay_out(const collectives::Call& call);
  at::Tensor host_bytes(const collectives::Range& range) const;
  void copy_to_host(const std::vector<IslandStage::Copy>& copies);
  void copy_to_device(const std::vector<IslandStage::Copy>& copies);
  void copy_own();

  const std::shared_ptr<StagedOperation> operation_;
  IslandStage stage_;
  collectives::Call bridge_;
  std::vector<std::uint64_t> input_offsets_, output_offsets_;  // in the slot's memory
  Slot own_;
  Slot* slot_;
  const std::shared_ptr<StagingClock> clock_;
  LibraryOperations inward_;
  std::vector<IslandStage::Copy> arriving_;  // on the CPU: copied when inward_ has ended
  const bool comes_in_parts_;
  const std::uint64_t part_bytes_;
  std::vector<c10::Event> loaded_;     // by part
  std::size_t parts_here_ = 0;         // known to have been loaded
  std::vector<std::uint64_t> stored_;  // by output
  std::optional<std::vector<IslandStage::Copy>> leaving_;
  bool own_is_copied_ = false;
};

}  // namespace atl::pytorch
