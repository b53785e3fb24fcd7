// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/operands.h"
#include "atoll/pytorch/staging/pending.h"

namespace atl::pytorch {

/// The group as a piece sees it. Outlives the pieces.
struct Surroundings {
  const collectives::Topology* topology = nullptr;
  collectives::ScheduleLimits limits;
  int rank = 0;
  std::shared_ptr<Library> library;     ///< null: the piece crosses the bridge as it is
  std::chrono::milliseconds timeout{};  ///< of the library's operations
};

/// Which of its parts a collective has the island's library do. All ranks agree: by the operation.
struct LibraryParts {
  bool in = false;   ///< contributions are folded
  bool out = false;  ///< results are spread
};
LibraryParts library_parts_of(collectives::Operation operation);

/// The part of one piece of a collective that happens inside the island, on the tensors' device. With a library, contributions
/// are folded to the ranks that lead them (collectives/schedule/leads.h) and results are spread from there; without, this
/// only says what comes and goes. Calls on every rank of an island issue the same operations in the same order.
class Inside {
 public:
  /// Bytes that are copied between the device and the bridge's memory for `range`.
  struct Copy {
    collectives::Range range;
    at::Tensor bytes;
  };

  /// `call`'s segments are memory of `operands`, which outlives this.
  Inside(const Surroundings& around, const Operands& operands, const collectives::Call& call);

  /// What this rank gives to itself in gather, scatter and all_to_all: segments of the input and the output, for which nothing
  /// comes and goes.
  struct Own {
    std::size_t input;
    std::size_t output;
  };
  const std::optional<Own>& own() const noexcept { return own_; }

  /// That input and that output, where bytes have to be copied from one to the other.
  std::optional<std::pair<at::Tensor, at::Tensor>> own_copy() const;

  /// Issues what comes before the bridge; returns what this rank brings there, valid once `pending` has ended.
  std::vector<Copy> bring(Pending& pending);

  /// Where what this rank gets from the bridge goes to.
  std::vector<Copy> take();

  /// Issues what makes the outputs of it, once the bytes that take() named have arrived.
  void spread(Pending& pending);

 private:
  struct Spread {
    std::size_t segment = 0;
    at::Tensor shard;  // of bytes; undefined: the island's first rank has the whole segment
  };
  struct Part {
    std::uint64_t elements = 0;        // of the message
    std::uint64_t each = 0;            // that a rank leads
    std::uint64_t begin = 0, end = 0;  // this rank's
  };

  const collectives::Segment& input(std::size_t segment) const { return call_.input[segment]; }
  const collectives::Segment& output(std::size_t segment) const { return call_.output[segment]; }
  std::uint64_t element_bytes() const { return collectives::size_of(call_.dtype); }
  const std::vector<int>& island() const;
  bool is_near(std::size_t rank) const { return around_.topology->same_island(around_.rank, static_cast<int>(rank)); }
  Part part_of(std::uint64_t bytes) const;
  collectives::Range range(collectives::Space space, std::size_t segment, std::uint64_t begin, std::uint64_t end) const;

  void bring_whole(std::size_t segment);
  void bring_part(std::size_t segment, Pending& pending);
  void fold_to(std::size_t segment, int rank, Pending& pending);
  void fold_near_segments(Pending& pending);
  at::Tensor values_of(std::size_t segment) const;
  at::Tensor own_copy_of(std::size_t segment) const;
  void take_whole(std::size_t segment);
  void take_part(std::size_t segment);
  void spread_part(const Spread& part, Pending& pending);
  void spread_near_segments(Pending& pending);
  void broadcast(const at::Tensor& bytes, int place, Pending& pending);
  c10d::AllgatherOptions gathering() const;
  bool near_segments_are_equal(const std::vector<collectives::Segment>& segments) const;

  const Surroundings around_;
  const Operands& operands_;
  const collectives::Call call_;
  const std::optional<Own> own_;
  std::vector<Copy> copies_;
  std::vector<Spread> spreads_;
  std::vector<at::Tensor> kept_;  // while operations use them
};

}  // namespace atl::pytorch
