// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/row_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "infer_cases.h"
#include "tests/support/rules_text.h"

namespace atl::infer {
namespace {

using test::Dice;
using Rows = std::int64_t;

// The rows of an operand with n rows of which an output row is made, by the definition of the operator.
std::set<Rows> rows_of(const maps::Window& map, Rows o, Rows n) {
  std::set<Rows> rows;
  for (Rows j = 0; j < map.kernel; ++j) {
    const Rows row = o * map.stride - map.padding + j * map.dilation;
    if (row >= 0 && row < n) rows.insert(row);
  }
  return rows;
}

std::set<Rows> rows_of(const maps::Transposed& map, Rows o, Rows n) {
  std::set<Rows> rows;
  for (Rows i = 0; i < n; ++i) {
    for (Rows j = 0; j < map.kernel; ++j) {
      if (i * map.stride - map.padding + j * map.dilation == o) rows.insert(i);
    }
  }
  return rows;
}

std::set<Rows> rows_of(const maps::Reflect& map, Rows o, Rows n) {
  const Rows t = o - map.low;
  return {t < 0 ? -t : t >= n ? 2 * (n - 1) - t : t};
}

std::set<Rows> rows_of(const maps::Replicate& map, Rows o, Rows n) { return {std::clamp<Rows>(o - map.low, 0, n - 1)}; }

std::set<Rows> rows_of(const maps::Wrap& map, Rows o, Rows n) { return {(((o - map.shift) % n) + n) % n}; }

std::set<Rows> rows_of(const maps::Flip& /*map*/, Rows o, Rows n) { return {n - 1 - o}; }

std::set<Rows> rows_of(const maps::Scale& map, Rows o, Rows n) {
  std::set<Rows> rows;
  // Both as pieces of a common length: a row of the output is `times` of them, one of the operand `over`.
  for (Rows i = 0; i < n; ++i) {
    if (i * map.over < (o + 1) * map.times && (i + 1) * map.over > o * map.times) rows.insert(i);
  }
  return rows;
}

std::set<Rows> rows_of(const maps::Stride& map, Rows o, Rows /*n*/) { return {map.start + o * map.step}; }

std::set<Rows> rows_of(const maps::Part& map, Rows o, Rows n) {
  const Rows row = o - map.offset;
  return row >= 0 && row < n ? std::set<Rows>{row} : std::set<Rows>{};
}

Region hull_of(const std::set<Rows>& rows) {
  return rows.empty() ? Region{} : Region{*rows.begin(), *rows.rbegin() + 1};
}

// Every row that is read is declared; of maps whose rows lie together nothing else is.
template <typename Map>
void expect_rows(const Map& map, Rows n, Rows m, bool tight) {
  for (Rows x = 0; x < m; ++x) {
    std::set<Rows> rows;
    for (Rows y = x + 1; y <= m; ++y) {
      rows.merge(rows_of(map, y - 1, n));
      const Region found = needed(map, {x, y}, n);
      const Region read = hull_of(rows);
      ASSERT_TRUE(found.holds(read)) << to_string(RowMap(map)) << ", rows " << x << " to " << y << " of " << n;
      if (tight) {
        ASSERT_EQ(found, read) << to_string(RowMap(map)) << ", rows " << x << " to " << y << " of " << n;
      }
    }
  }
}

TEST(RowMap, WindowsAreWhatConvolutionsRead) {
  Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    const maps::Window map{dice.integer(1, 5), dice.integer(1, 4), dice.integer(0, 6), dice.integer(1, 3)};
    const Rows n = dice.integer(1, 14);
    const Rows m = floor_div(n + 2 * map.padding - map.dilation * (map.kernel - 1) - 1, map.stride) + 1;
    // Rows in gaps are declared as well: between windows, and within dilated ones.
    expect_rows(map, n, m, map.dilation == 1 && map.kernel >= map.stride);
  }
}

TEST(RowMap, TransposedConvolutions) {
  Dice dice(2);
  for (int i = 0; i < 300; ++i) {
    const maps::Transposed map{dice.integer(1, 5), dice.integer(1, 4), dice.integer(0, 3), dice.integer(1, 3)};
    const Rows n = dice.integer(1, 9);
    const Rows m = (n - 1) * map.stride - 2 * map.padding + map.dilation * (map.kernel - 1) + dice.integer(1, 3);
    expect_rows(
        map, n, m,
        map.dilation == 1 && map.kernel >= map.stride && map.padding == 0 && m <= (n - 1) * map.stride + map.kernel);
  }
}

TEST(RowMap, Borders) {
  for (Rows n = 1; n < 8; ++n) {
    for (Rows low = 0; low < 6; ++low) {
      for (Rows high = 0; high < 6; ++high) {
        if (low < n && high < n) expect_rows(maps::Reflect{low}, n, low + n + high, low + high == 0);
        expect_rows(maps::Replicate{low}, n, low + n + high, true);
      }
    }
  }
}

TEST(RowMap, OrdersAndPieces) {
  Dice dice(3);
  for (int i = 0; i < 300; ++i) {
    const Rows n = dice.integer(1, 10);
    expect_rows(maps::Wrap{dice.integer(-25, 25)}, n, n, false);
    expect_rows(maps::Wrap{0}, n, n * dice.integer(1, 3), false);
    expect_rows(maps::Flip{}, n, n, true);
    const Rows factor = dice.integer(1, 5);
    expect_rows(maps::Scale{1, factor}, n, n * factor, true);
    expect_rows(maps::Scale{factor, 1}, n * factor, n, true);
    const maps::Stride stride{dice.integer(0, n - 1), dice.integer(1, 4)};
    expect_rows(stride, n, ceil_div(n - stride.start, stride.step), true);
    const Rows offset = dice.integer(0, 6);
    expect_rows(maps::Part{offset}, n, offset + n + dice.integer(0, 5), true);
  }
}

TEST(RowMap, MeanPoolsGetRowsFromTheGridOfTheirStridesOn) {
  Dice dice(6);
  for (int i = 0; i < 2000; ++i) {
    const maps::Grid map{dice.integer(1, 5), dice.integer(1, 4), dice.integer(0, 2)};
    const Rows n = dice.integer(map.kernel, 15);
    const Rows m = floor_div(n + 2 * map.padding - map.kernel, map.stride) + 1;
    const Rows x = dice.integer(0, m - 1);
    const Region rows{x, dice.integer(x + 1, m)};
    const Region found = needed(map, rows, n);
    ASSERT_EQ(found.begin % map.stride, 0);
    ASSERT_GE(found.size(), map.kernel);
    // The first row that is kept sees none of the operator's own padding, unless that is where the whole has it.
    ASSERT_TRUE(found.begin == 0 || found.begin <= rows.begin * map.stride - map.padding);
    ASSERT_GE(found.end, std::min(n, (rows.end - 1) * map.stride - map.padding + map.kernel));
  }
}

RowMap any_map(Dice& dice) {
  const auto positive = [&] { return dice.integer(1, 4); };
  const auto low = [&] { return dice.integer(0, 3); };
  switch (dice.integer(0, 14)) {
    case 0: return maps::Identity{};
    case 1: return maps::Nothing{};
    case 2: return maps::Window{positive(), positive(), low(), positive()};
    case 3: return maps::Grid{positive(), positive(), low()};
    case 4: return maps::Transposed{positive(), positive(), low(), positive()};
    case 5: return maps::Blocks{positive(), positive(), low(), low(), dice.integer(0, 1)};
    case 6: return maps::Scale{positive(), positive()};
    case 7: return maps::Stride{low(), positive()};
    case 8: return maps::Shift{dice.integer(-3, 3)};
    case 9: return maps::Reflect{low()};
    case 10: return maps::Replicate{low()};
    case 11: return maps::Flip{};
    case 12: return maps::Wrap{dice.integer(-9, 9)};
    case 13: return maps::Part{low()};
    default: return maps::Prefix{};
  }
}

TEST(RowMap, MoreRowsNeverNeedFewer) {
  Dice dice(4);
  for (int i = 0; i < 20000; ++i) {
    const RowMap map = any_map(dice);
    const Rows n = dice.integer(1, 12);
    const Rows m = std::holds_alternative<maps::Flip>(map) ? n : dice.integer(1, 12);
    const Rows x = dice.integer(0, m - 1);
    const Region inner{x, dice.integer(x + 1, m)};
    const Region outer{dice.integer(0, inner.begin), dice.integer(inner.end, m)};
    const Region rows = needed(map, inner, n);
    ASSERT_TRUE(needed(map, outer, n).holds(rows)) << to_string(map);
    ASSERT_TRUE((Region{0, n}.holds(rows))) << to_string(map);
    ASSERT_EQ(needed(map, {x, x}, n), Region{}) << to_string(map);
    ASSERT_EQ(needed(map, inner, 0), Region{}) << to_string(map);
    const Cut parts = cut(reached(map, inner, n), n);
    ASSERT_EQ(parts.rows, rows) << to_string(map);
    ASSERT_EQ(parts.low + parts.rows.size() + parts.high, reached(map, inner, n).size()) << to_string(map);
  }
}

TEST(RowMap, BlocksStartWithWholeBlocks) {
  const maps::Blocks thirds{2, 3, 1, 1, 0};  // 2 rows under 3
  EXPECT_EQ(needed(thirds, {3, 6}, 12), (Region{0, 6}));
  EXPECT_EQ(needed(thirds, {4, 5}, 12), (Region{0, 6}));
  EXPECT_EQ(needed(thirds, {6, 7}, 12), (Region{2, 8}));
  EXPECT_EQ(needed(thirds, {17, 18}, 12), (Region{8, 12}));
  const maps::Blocks aligned{2, 3, 0, 0, 1};  // 2 k + 1 rows become 3 k + 1
  EXPECT_EQ(needed(aligned, {0, 1}, 7), (Region{0, 1}));
  EXPECT_EQ(needed(aligned, {0, 4}, 7), (Region{0, 3}));
  EXPECT_EQ(needed(aligned, {3, 5}, 7), (Region{2, 5}));
  EXPECT_EQ(needed(aligned, {9, 10}, 7), (Region{6, 7}));
}

TEST(RowMap, CutsAtBothEnds) {
  EXPECT_EQ(cut({-2, 9}, 6), (Cut{{0, 6}, 2, 3}));
  EXPECT_EQ(cut({2, 4}, 6), (Cut{{2, 4}, 0, 0}));
  EXPECT_EQ(cut({-5, -3}, 6), (Cut{{}, 2, 0}));
  EXPECT_EQ(cut({8, 9}, 6), (Cut{{}, 0, 1}));
  EXPECT_EQ(cut({3, 3}, 6), Cut{});
}

TEST(RowMap, ArePrinted) {
  EXPECT_EQ(to_string(RowMap(maps::Window{3, 2, 1, 1})), "window(kernel 3, stride 2, padding 1, dilation 1)");
  EXPECT_EQ(to_string(RowMap(maps::Identity{})), "identity");
  EXPECT_EQ(to_string(RowMap(maps::Blocks{1, 2, 1, 1, 0})), "blocks(inputs 1, outputs 2, low 1, high 1, overlap 0)");
  EXPECT_EQ(to_string(RowMap(maps::Wrap{-3})), "wrap(shift -3)");
}

TEST(RowMap, DivisionRoundsTowardsTheNamedSide) {
  for (Rows a = -9; a <= 9; ++a) {
    for (Rows b = 1; b <= 4; ++b) {
      ASSERT_LE(floor_div(a, b) * b, a);
      ASSERT_GT(floor_div(a, b) * b, a - b);
      ASSERT_GE(ceil_div(a, b) * b, a);
      ASSERT_LT(ceil_div(a, b) * b, a + b);
    }
  }
}

}  // namespace
}  // namespace atl::infer
