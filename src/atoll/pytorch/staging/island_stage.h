// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/library_operations.h"
#include "atoll/pytorch/staging/operands.h"

namespace atl::pytorch {

/// What a chunk needs to know of its group. `topology` outlives the chunks.
struct StagingContext {
  const collectives::Topology* topology = nullptr;
  collectives::ScheduleLimits limits;
  int rank = 0;
  std::shared_ptr<Library> library;     ///< null: chunks cross the bridge as they are
  std::chrono::milliseconds timeout{};  ///< of the library's operations
};

/// The parts of a collective that the island's library does. They follow from the operation, so all ranks agree.
struct LibraryParts {
  bool in = false;   ///< contributions are folded
  bool out = false;  ///< results are spread
};
LibraryParts library_parts_of(collectives::Operation operation);

/// The part of a staged chunk that happens inside the island, on the tensors' device. With a library, contributions are
/// folded to the ranks that lead them (collectives/schedule/chunks.h) and results are spread from there; without one, it
/// only lists what is copied. All ranks of an island issue the same operations in the same order.
class IslandStage {
 public:
  /// Bytes that are copied between the device and the bridge's memory for `range`.
  struct Copy {
    collectives::Range range;
    at::Tensor bytes;
  };

  /// `call`'s segments are memory of `operands`, which outlives this.
  IslandStage(const StagingContext& context, const Operands& operands, const collectives::Call& call);

  /// The segments of the input and the output that this rank sends to itself in gather, scatter and all_to_all. They
  /// stay on the device.
  struct Own {
    std::size_t input;
    std::size_t output;
  };
  const std::optional<Own>& own() const noexcept { return own_; }

  /// The input and the output that are this rank's own; nothing if no bytes have to be copied from one to the other.
  std::optional<std::pair<at::Tensor, at::Tensor>> own_copy() const;

  /// Issues the library's operations before the bridge. Returns what this rank contributes there, valid once
  /// `operations` have ended.
  std::vector<Copy> fold(LibraryOperations& operations);

  /// Returns the places of what this rank receives from the bridge.
  std::vector<Copy> place_results();

  /// Issues the library's operations after the bridge, once the bytes that place_results() named have arrived.
  void spread(LibraryOperations& operations);

 private:
  struct Spread {
    std::size_t segment = 0;
    at::Tensor shard;  // of bytes; undefined if the island's first rank has the whole segment
  };
  struct Part {
    std::uint64_t elements = 0;        // of the message
    std::uint64_t each = 0;            // elements that a rank leads
    std::uint64_t begin = 0, end = 0;  // those of this rank
  };

  const collectives::Segment& input(std::size_t segment) const { return call_.input[segment]; }
  const collectives::Segment& output(std::size_t segment) const { return call_.output[segment]; }
  std::uint64_t element_bytes() const { return collectives::size_of(call_.dtype); }
  const std::vector<int>& island() const;
  bool is_in_island(std::size_t rank) const {
    return context_.topology->same_island(context_.rank, static_cast<int>(rank));
  }
  Part part_of(std::uint64_t bytes) const;
  collectives::Range range(collectives::Space space, std::size_t segment, std::uint64_t begin, std::uint64_t end) const;

  void add_whole_input(std::size_t segment);
  void fold_part(std::size_t segment, LibraryOperations& operations);
  void fold_to(std::size_t segment, int rank, LibraryOperations& operations);
  void fold_island_segments(LibraryOperations& operations);
  at::Tensor values_of(std::size_t segment) const;
  at::Tensor own_copy_of(std::size_t segment) const;
  void add_whole_output(std::size_t segment);
  void add_led_output(std::size_t segment);
  void spread_part(const Spread& part, LibraryOperations& operations);
  void spread_island_segments(LibraryOperations& operations);
  void broadcast(const at::Tensor& bytes, int place, LibraryOperations& operations);
  c10d::AllgatherOptions gathering() const;
  bool island_segments_are_equal(const std::vector<collectives::Segment>& segments) const;

  const StagingContext context_;
  const Operands& operands_;
  const collectives::Call call_;
  const std::optional<Own> own_;
  std::vector<Copy> copies_;
  std::vector<Spread> spreads_;
  std::vector<at::Tensor> kept_;  // while operations use them
};

}  // namespace atl::pytorch
