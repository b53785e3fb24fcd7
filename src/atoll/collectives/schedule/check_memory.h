// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives::detail {

/// Values of the symbolic check: a rank's contribution, or a fold of such values in order. Equal expressions have equal
/// ids, so equal ids mean equal bits.
class Expressions {
 public:
  using Id = std::int32_t;
  static constexpr Id kNothing = -1;

  /// Returns the contribution of `rank`, as the rank gave it.
  Id contribution(int rank);

  /// Folds `sources`. On a fault (an unwritten source, a contribution twice, raw and folded values mixed, an owner's
  /// result folded again) returns kNothing and describes it in `fault`.
  Id fold(const std::vector<Id>& sources, bool raw, bool final, std::string& fault);

  bool is_contribution(Id id) const { return at(id).sources.empty(); }

  /// Returns the fault of `id` as a result of the whole group: a missing contribution, another order or grouping than
  /// the topology's, no fold by the owner; empty if there is none.
  std::string check_result(const Topology& topology, Id id) const;

  /// Returns "((0 1) 2)".
  std::string print(Id id) const;

 private:
  struct Expression {
    std::vector<Id> sources;  // empty: a contribution
    std::vector<int> ranks;   // ranks that contributed, in the order of folding
    bool final = false;
  };
  const Expression& at(Id id) const { return expressions_[static_cast<std::size_t>(id)]; }
  bool respects_islands(const Topology& topology, Id id) const;

  std::vector<Expression> expressions_;
  std::map<std::vector<Id>, Id> known_;
};

/// The value of a range of memory: an expression over the bytes of `segment` that begin at `origin`.
struct Value {
  Expressions::Id expression = Expressions::kNothing;
  std::uint32_t segment = 0;
  std::uint64_t origin = 0;
};

/// A piece of memory or of a frame with one value.
struct Run {
  std::uint64_t bytes = 0;
  Value value;
};
using Runs = std::vector<Run>;

/// Folds sources of equal length piece by piece. `fault` is set as in Expressions::fold, and also if sources come from
/// different positions.
Runs fold_runs(Expressions& expressions, const std::vector<Runs>& sources, bool raw, bool final, std::string& fault);

/// Returns the bytes of each input (or output) segment of `rank`, as schedule.h lists them.
std::vector<std::uint64_t> segment_bytes(const Topology& topology, const Shape& shape, int rank, Space space);

/// The steps known to have completed before a step: a count by lane, with all ranks' lanes numbered through.
using Knowledge = std::vector<std::uint32_t>;

/// Step number `step` (from 1) of `lane`, which knows `known`.
struct Moment {
  std::uint32_t lane;
  std::uint32_t step;
  const Knowledge& known;
};

/// One rank's memory in the symbolic check: its contents, and the last accesses to them.
class Memory {
 public:
  /// With a library inside the island (shape.library_inside) the input holds only what led_inputs() names.
  Memory(const Topology& topology, const Shape& shape, int rank, bool in_place, std::uint64_t scratch_bytes,
         const ScheduleLimits& limits, Expressions& expressions);

  /// Read or write `range`. Faults (out of bounds, memory that was never written, an access that is not ordered with
  /// that of another lane) are described in `fault`.
  Runs read(const Range& range, const Moment& now, std::string& fault);
  void write(const Range& range, const Runs& runs, const Moment& now, std::string& fault);

  /// Return whether both ranges (of equal length) are the same memory, and whether they overlap without being the same.
  bool same(const Range& a, const Range& b) const { return area_of(a) == area_of(b) && a.offset == b.offset; }
  bool overlap_askew(const Range& a, const Range& b) const {
    return area_of(a) == area_of(b) && a.offset != b.offset && a.offset < b.offset + b.bytes &&
           b.offset < a.offset + a.bytes;
  }

  /// Returns the contents of an output segment.
  Runs output(std::uint32_t segment) const;

 private:
  struct Access {
    std::uint32_t lane = 0;
    std::uint32_t step = 0;  // 0: never
  };
  struct Piece {
    std::uint64_t bytes = 0;
    Value value;
    Access writer;
    std::vector<Access> readers;  // since the last write, one per lane
  };
  using Area = std::map<std::uint64_t, Piece>;  // by offset, without gaps
  void place_led_inputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits,
                        Expressions& expressions);

  std::size_t area_of(const Range& range) const;
  static void cut(Area& area, std::uint64_t offset);

  std::vector<Area> areas_;
  std::vector<std::size_t> input_area_;
  std::vector<std::size_t> output_area_;
  std::size_t scratch_area_ = 0;
};

}  // namespace atl::collectives::detail
