// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/row_map.h"

#include <algorithm>

namespace atl::infer {
namespace {

using Rows = std::int64_t;

Region reach_of(const maps::Identity& /*map*/, Region rows, Rows /*n*/) { return rows; }

Region reach_of(const maps::Nothing& /*map*/, Region /*rows*/, Rows /*n*/) { return {}; }

Region reach_of(const maps::Window& map, Region rows, Rows /*n*/) {
  return {rows.begin * map.stride - map.padding,
          (rows.end - 1) * map.stride - map.padding + map.dilation * (map.kernel - 1) + 1};
}

Region reach_of(const maps::Grid& map, Region rows, Rows n) {
  const Rows last = floor_div(n - map.kernel, map.stride);  // the last start with a full kernel of rows after it
  const Rows first = rows.begin - ceil_div(map.padding, map.stride);
  const Rows begin = std::max<Rows>(0, std::min(first, last)) * map.stride;
  return {begin, std::max((rows.end - 1) * map.stride - map.padding, begin) + map.kernel};
}

// Row i makes the rows i s - p + d j, for j from 0 to k - 1.
Region reach_of(const maps::Transposed& map, Region rows, Rows /*n*/) {
  const Rows span = map.dilation * (map.kernel - 1);
  const Rows first = rows.begin + map.padding;
  const Rows last = rows.end - 1 + map.padding;
  const Rows begin = std::min(ceil_div(first - span, map.stride), floor_div(first, map.stride));
  const Rows end = std::max(floor_div(last, map.stride), ceil_div(last - span, map.stride)) + 1;
  return {std::max<Rows>(0, begin), end};
}

Region reach_of(const maps::Blocks& map, Region rows, Rows /*n*/) {
  const Rows begin = std::max<Rows>(0, floor_div(rows.begin, map.outputs) - map.low);
  const Rows end = ceil_div(rows.end - map.overlap, map.outputs) + map.high;
  return {begin * map.inputs, end * map.inputs + map.overlap};
}

Region reach_of(const maps::Scale& map, Region rows, Rows /*n*/) {
  return {floor_div(rows.begin * map.times, map.over), ceil_div(rows.end * map.times, map.over)};
}

Region reach_of(const maps::Stride& map, Region rows, Rows /*n*/) {
  return {map.start + rows.begin * map.step, map.start + (rows.end - 1) * map.step + 1};
}

Region reach_of(const maps::Shift& map, Region rows, Rows /*n*/) {
  return {rows.begin + map.offset, rows.end + map.offset};
}

// Row t < 0 is row -t, row t >= n is row 2 (n - 1) - t. The operator reflects at the ends of its input, so where the
// rows pass a border they have to begin there.
Region reach_of(const maps::Reflect& map, Region rows, Rows n) {
  const Region t{rows.begin - map.low, rows.end - map.low};
  Region reach{std::max<Rows>(0, t.begin), std::min(n, t.end)};
  if (t.end > n) reach = {std::min(reach.begin, 2 * n - 1 - t.end), n};
  if (t.begin < 0) reach = {0, std::max(reach.end, 1 - t.begin)};
  return reach;
}

Region reach_of(const maps::Replicate& map, Region rows, Rows n) {
  const Region t{rows.begin - map.low, rows.end - map.low};
  return {std::clamp<Rows>(t.begin, 0, n - 1), std::clamp<Rows>(t.end, 1, n)};
}

Region reach_of(const maps::Flip& /*map*/, Region rows, Rows n) { return {n - rows.end, n - rows.begin}; }

Region reach_of(const maps::Wrap& map, Region rows, Rows n) {
  const Rows shifted = rows.begin - map.shift;
  const Rows begin = shifted - floor_div(shifted, n) * n;
  if (begin + rows.size() > n) return {0, n};
  return {begin, begin + rows.size()};
}

Region reach_of(const maps::Part& map, Region rows, Rows n) {
  return intersection({rows.begin - map.offset, rows.end - map.offset}, {0, n});
}

Region reach_of(const maps::Prefix& /*map*/, Region rows, Rows /*n*/) { return {0, rows.end}; }

}  // namespace

Region reached(const RowMap& map, Region rows, std::int64_t operand_rows) {
  if (rows.is_empty() || operand_rows <= 0) return {};
  return std::visit([&](const auto& kind) { return reach_of(kind, rows, operand_rows); }, map);
}

Region needed(const RowMap& map, Region rows, std::int64_t operand_rows) {
  return intersection(reached(map, rows, operand_rows), {0, operand_rows});
}

Cut cut(Region reach, std::int64_t operand_rows) {
  if (reach.is_empty()) return {};
  Cut parts;
  parts.rows = intersection(reach, {0, operand_rows});
  parts.low = std::max<std::int64_t>(0, std::min<std::int64_t>(0, reach.end) - reach.begin);
  parts.high = std::max<std::int64_t>(0, reach.end - std::max(reach.begin, operand_rows));
  return parts;
}

std::string to_string(Region rows) { return "[" + std::to_string(rows.begin) + ", " + std::to_string(rows.end) + ")"; }

}  // namespace atl::infer
