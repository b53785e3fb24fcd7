// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/reassembly.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {
namespace {

constexpr std::uint64_t kMapWindow = std::uint64_t{64} << 10;

struct Piece {
  std::uint64_t position;
  std::uint64_t bytes;
};

/// The same bookkeeping, with every unit recorded.
class Plain {
 public:
  bool has(const Piece& piece) const {
    for (std::uint64_t unit = piece.position / kUnit; unit < stop(piece); ++unit) {
      if (!there_.contains(unit)) return false;
    }
    return true;
  }
  void add(const Piece& piece) {
    for (std::uint64_t unit = piece.position / kUnit; unit < stop(piece); ++unit) there_.insert(unit);
    while (there_.contains(end_)) ++end_;
  }
  std::uint64_t end() const { return end_ * kUnit; }

 private:
  static std::uint64_t stop(const Piece& piece) { return (piece.position + piece.bytes + kUnit - 1) / kUnit; }
  std::set<std::uint64_t> there_;
  std::uint64_t end_ = 0;  // the first unit that is not there
};

bool is_protocol_error(const SegmentMap& map, const Piece& piece) {
  try {
    static_cast<void>(map.has(piece.position, piece.bytes));
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kProtocol;
  }
  return false;
}

TEST(SegmentMap, AgreesWithPlainBookkeepingInAnyOrderAndWithRepetitions) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SegmentMap map(kMapWindow);
    Plain plain;
    std::vector<Piece> under_way;
    std::vector<Piece> done;
    std::uint64_t next = 0;
    const std::size_t largest = seed % 2 == 0 ? 300 : 20000;
    for (int step = 0; step < 400; ++step) {
      const Piece fresh{next, 1 + random() % largest};
      if (next + whole_units(fresh.bytes) - map.end() <= kMapWindow) {
        next += whole_units(fresh.bytes);
        under_way.push_back(fresh);
      }
      if (under_way.empty()) continue;
      const auto chosen = under_way.begin() + static_cast<std::ptrdiff_t>(random() % under_way.size());
      ASSERT_FALSE(map.has(chosen->position, chosen->bytes));
      map.add(chosen->position, chosen->bytes);
      plain.add(*chosen);
      ASSERT_EQ(map.end(), plain.end());
      done.push_back(*chosen);
      under_way.erase(chosen);
      const Piece& repeated = done[random() % done.size()];
      ASSERT_TRUE(map.has(repeated.position, repeated.bytes)) << repeated.position;
      map.add(repeated.position, repeated.bytes);
      ASSERT_EQ(map.end(), plain.end());
    }
    for (const Piece& each : under_way) map.add(each.position, each.bytes);
    EXPECT_EQ(map.end(), next);
  }
}

TEST(SegmentMap, AFullWindowInReverseOrderIsShownAtOnce) {
  SegmentMap map(kMapWindow);
  for (std::uint64_t lap = 0; lap < 3; ++lap) {
    const std::uint64_t begin = lap * kMapWindow;
    for (std::uint64_t at = kMapWindow; at > kUnit; at -= kUnit) {
      map.add(begin + at - kUnit, kUnit);
      ASSERT_EQ(map.end(), begin);
    }
    map.add(begin, 1);  // a unit counts as whole
    EXPECT_EQ(map.end(), begin + kMapWindow);
  }
}

TEST(SegmentMap, NothingArrivesAfterTheEndOfAStream) {
  SegmentMap map(kMapWindow);
  map.add(0, 3 * kUnit);
  map.finish();
  EXPECT_EQ(map.end(), 3 * kUnit);
  EXPECT_TRUE(map.has(kUnit, 2 * kUnit)) << "what has come may come again";
  map.add(kUnit, 2 * kUnit);
  EXPECT_TRUE(is_protocol_error(map, {3 * kUnit, 1}));
  EXPECT_TRUE(is_protocol_error(map, {2 * kUnit, 2 * kUnit}));
}

TEST(SegmentMap, WhatDoesNotFitIsAProtocolError) {
  SegmentMap map(kMapWindow);
  EXPECT_TRUE(is_protocol_error(map, {1, 64}));
  EXPECT_TRUE(is_protocol_error(map, {0, kMapWindow + 1}));
  EXPECT_TRUE(is_protocol_error(map, {kMapWindow, 1}));
  EXPECT_TRUE(is_protocol_error(map, {0, 0}));
  EXPECT_TRUE(is_protocol_error(map, {~std::uint64_t{63}, 128}));  // wraps round
  EXPECT_FALSE(map.has(0, kMapWindow));
  map.add(128, 64);
  EXPECT_TRUE(is_protocol_error(map, {64, 128}));  // half of it is there
  EXPECT_TRUE(is_protocol_error(map, {128, 128}));
  map.add(0, 128);
  EXPECT_EQ(map.end(), 192U);
  EXPECT_TRUE(is_protocol_error(map, {128, 128}));  // from before the end to after it
  EXPECT_TRUE(map.has(0, 192));
  EXPECT_FALSE(map.has(192, kMapWindow));
  EXPECT_TRUE(is_protocol_error(map, {192, kMapWindow + 1}));
}

}  // namespace
}  // namespace atl::transport::tcp
