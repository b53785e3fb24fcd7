// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/collectives/schedule/check_values.h"
#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives::detail {

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
