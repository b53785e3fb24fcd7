// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "atoll/pytorch/staging/inside.h"
#include "atoll/pytorch/staging/staging_clock.h"
#include "atoll/pytorch/staging/trip.h"

namespace atl::pytorch {

/// Host memory that pieces use one after another.
struct Slot {
  at::Tensor memory;                 // of bytes
  std::optional<c10::Event> vacant;  // reached when the piece before has left it; unset: it has
};

/// One piece of an operation: its way to the host, the call that crosses the bridge from there, and the way back. load(), then
/// is_loaded() until true, then the call, then store(); not thread-safe. A piece that comes in parts crosses the bridge while
/// it still comes and already goes; what a rank gives to itself stays on the device.
class Piece {
 public:
  /// `call`'s segments are memory of the trip's operands. Takes `slot` if the piece fits in, else memory of its own. `clock`
  /// times its copies.
  Piece(std::shared_ptr<Trip> trip, const Surroundings& around, const collectives::Call& call, Slot* slot,
        std::shared_ptr<StagingClock> clock);

  /// The call that crosses the bridge, on host memory.
  const collectives::Call& bridge_call() const noexcept { return bridge_; }

  /// Issues the way to the host; does not wait for the device.
  void load();

  /// Whether the host memory holds the inputs. With a library on the CPU it waits for that. Throws atl::Error when the library
  /// has failed.
  bool is_loaded();

  /// Issues the way back, or the rest of it.
  void store();

  /// Whether the call begins with the first part, then asks for the others and tells what has crossed.
  bool comes_in_parts() const noexcept { return comes_in_parts_; }

  /// Whether the host memory holds the first `end` bytes of an input. Throws c10::Error when the device has failed.
  bool is_loaded(std::uint32_t segment, std::uint64_t end);

  /// Issues the way back of the parts of an output that are whole.
  void arrived(std::uint32_t segment, std::uint64_t end);

 private:
  std::uint64_t lay_out(const collectives::Call& call);
  at::Tensor host_bytes(const collectives::Range& range) const;
  void copy_to_host(const std::vector<Inside::Copy>& copies);
  void copy_to_device(const std::vector<Inside::Copy>& copies);
  void keep_own();

  const std::shared_ptr<Trip> trip_;
  Inside inside_;
  collectives::Call bridge_;
  std::vector<std::uint64_t> input_offsets_, output_offsets_;  // in the slot's memory
  Slot own_;
  Slot* slot_;
  const std::shared_ptr<StagingClock> clock_;
  Pending inward_;
  std::vector<Inside::Copy> arriving_;  // on the CPU: copied when inward_ has ended
  const bool comes_in_parts_;
  const std::uint64_t part_bytes_;
  std::vector<c10::Event> loaded_;     // by part
  std::size_t parts_here_ = 0;         // of them, known to have come
  std::vector<std::uint64_t> stored_;  // by output
  std::optional<std::vector<Inside::Copy>> leaving_;
  bool own_is_kept_ = false;
};

}  // namespace atl::pytorch
