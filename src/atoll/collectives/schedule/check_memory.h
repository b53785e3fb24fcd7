// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/collectives/schedule/check_values.h"
#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives::detail {

/// Bytes of each input (or output) segment of `rank`, as schedule.h lists them.
std::vector<std::uint64_t> segment_bytes(const Topology& topology, const Shape& shape, int rank, Space space);

/// Whether contributions are folded, not only moved.
bool is_reduction(Operation operation);

/// Whether the operation may be called in place, and whether it always is.
bool may_be_in_place(Operation operation);
bool is_always_in_place(Operation operation);

/// What is known to have happened before a step: by lane (all ranks' lanes numbered through) the steps done.
using Knowledge = std::vector<std::uint32_t>;

/// One rank's memory in the symbolic check: what it holds, and who touched it last.
class Memory {
 public:
  /// With a library inside the island (shape.library_inside) the input holds what led_inputs() says and nothing else.
  Memory(const Topology& topology, const Shape& shape, int rank, bool in_place, std::uint64_t scratch_bytes,
         const ScheduleLimits& limits, Expressions& expressions);

  /// Step number `step` (from 1) of `lane`, which knows `known`, reads or writes `range`. A fault (out of bounds,
  /// nothing written there yet, an access that another lane's access is not ordered with) goes into `fault`.
  Runs read(const Range& range, std::uint32_t lane, std::uint32_t step, const Knowledge& known, std::string& fault);
  void write(const Range& range, const Runs& runs, std::uint32_t lane, std::uint32_t step, const Knowledge& known,
             std::string& fault);

  /// True when both ranges (of equal length) are the same memory; and when they overlap without being the same.
  bool same(const Range& a, const Range& b) const { return area_of(a) == area_of(b) && a.offset == b.offset; }
  bool overlap_askew(const Range& a, const Range& b) const {
    return area_of(a) == area_of(b) && a.offset != b.offset && a.offset < b.offset + b.bytes &&
           b.offset < a.offset + a.bytes;
  }

  /// All of an output segment.
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
