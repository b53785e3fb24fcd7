// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "codec_cases.h"

namespace atl::infer::wire {
namespace {

using test::ByteVector;
using test::Dice;
using test::few_valued;
using test::random_bytes;
using test::row;

TEST(Choose, TakesWhatArrivesFirst) {
  Dice dice(1);
  int packed = 0;
  for (int i = 0; i < 2000; ++i) {
    Measured speeds;
    for (std::size_t codec = 1; codec < speeds.size(); ++codec) {
      speeds[codec] = {dice.real(0, 1.2), dice.real(0, 1e-8), dice.real(0, 1e-8)};
    }
    const double rate = dice.real(1e6, 1e9);
    const Choice choice = choose(1'000'000, rate, speeds);
    const double raw = 1e6 / rate;
    double best = raw;
    std::array<double, 4> seconds{raw, 0, 0, 0};
    for (std::size_t codec = 1; codec < speeds.size(); ++codec) {
      const CodecSpeed& speed = speeds[codec];
      seconds[codec] = 1e6 * (speed.pack_seconds_per_byte + speed.unpack_seconds_per_byte + speed.packed_share / rate);
      if (speed.packed_share < 1) best = std::min(best, seconds[codec]);
    }
    EXPECT_NEAR(choice.seconds, seconds[static_cast<std::size_t>(choice.codec)], 1e-12);
    EXPECT_LE(choice.seconds, choice.codec == Codec::kRaw ? best / 0.9499 : best + 1e-12);
    if (choice.codec != Codec::kRaw) {
      EXPECT_LT(choice.seconds, 0.95 * raw);
      ++packed;
    }
  }
  EXPECT_GT(packed, 100);
  EXPECT_LT(packed, 1800);
}

TEST(Choose, SmallGainsAndUnknownRatesAreRaw) {
  Measured speeds;
  speeds[2].packed_share = 0.96;
  EXPECT_EQ(choose(1000, 1e6, speeds).codec, Codec::kRaw);
  speeds[2].packed_share = 0.94;
  EXPECT_EQ(choose(1000, 1e6, speeds).codec, Codec::kZstd);
  for (const double rate :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(choose(1000, rate, speeds).codec, Codec::kRaw);
  }
}

TEST(SampleOf, HasWholeElementsFromEverywhere) {
  std::vector<std::int32_t> values(10'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  const ByteVector bytes = test::bytes_of_values(values);
  const Tensor type = row(Dtype::kInt32, values.size());
  for (const std::size_t most : {4U, 5U, 31U, 32U, 33U, 4000U, 40'000U, 40'003U}) {
    const ByteVector sample = sample_of(type, bytes, most);
    EXPECT_LE(sample.size(), most);
    EXPECT_GE(sample.size() + 8 * 4, most);
    const std::vector<std::int32_t> found = test::values_of<std::int32_t>(sample);
    EXPECT_EQ(found.size() * 4, sample.size());
    EXPECT_EQ(std::set(found.begin(), found.end()).size(), found.size());
    EXPECT_EQ(found.front(), 0);
    if (most >= 8) {
      EXPECT_EQ(found.back(), 10'000) << most;
    }
    for (const std::int32_t value : found) EXPECT_TRUE(value >= 0 && value <= 10'000);
  }
  EXPECT_EQ(sample_of(type, bytes, bytes.size()), bytes);
  EXPECT_TRUE(sample_of(type, bytes, 3).empty());
}

// A clock that advances by a microsecond whenever it is read.
class Ticking {
 public:
  double operator()() { return 1e-6 * static_cast<double>(*ticks_ += 1); }

 private:
  std::shared_ptr<std::int64_t> ticks_ = std::make_shared<std::int64_t>(0);
};

constexpr double kSlow = 1e6;  // bytes per second

ByteVector sent(const Packed& packed, const Tensor& type, const ByteVector& bytes) {
  return test::unpacked(packed.codec, type, packed.codec == Codec::kRaw ? bytes : packed.bytes);
}

TEST(CodecChooser, PacksMasksOnASlowLink) {
  Dice dice(2);
  CodecChooser chooser(Ticking{});
  const Tensor type{Dtype::kFloat32, {1, 1, 100, 100}};
  for (int i = 0; i < 40; ++i) {
    const ByteVector mask = few_valued(dice, 4, 10'000, 2);
    const Packed packed = chooser.pack(type, mask, kSlow);
    EXPECT_NE(packed.codec, Codec::kRaw) << i;
    EXPECT_LT(packed.bytes.size(), 1400U) << i;
    EXPECT_EQ(sent(packed, type, mask), mask);
  }
}

TEST(CodecChooser, LeavesNoiseAndUnknownLinksAlone) {
  Dice dice(3);
  CodecChooser chooser(Ticking{});
  const Tensor type = row(Dtype::kFloat32, 10'000);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(chooser.pack(type, random_bytes(dice, 40'000), kSlow), Packed{});
  }
  EXPECT_GT(chooser.probe_seconds(), 0);
  CodecChooser unknown(Ticking{});
  const ByteVector zeros(40'000);
  EXPECT_EQ(unknown.pack(type, zeros, 0), Packed{});
  EXPECT_EQ(unknown.pack(type, zeros, std::numeric_limits<double>::infinity()), Packed{});
  EXPECT_EQ(unknown.probe_seconds(), 0);
  EXPECT_EQ(unknown.pack(row(Dtype::kFloat32, 0), {}, kSlow), Packed{});
}

TEST(CodecChooser, NoticesWithinSixteenMessagesThatItPays) {
  Dice dice(4);
  CodecChooser chooser(Ticking{});
  const Tensor type = row(Dtype::kUint8, 40'000);
  EXPECT_EQ(chooser.pack(type, random_bytes(dice, 40'000), kSlow).codec, Codec::kRaw);
  int raw = 0;
  while (chooser.pack(type, ByteVector(40'000), kSlow).codec == Codec::kRaw) ++raw;
  EXPECT_EQ(raw, 15);
}

TEST(CodecChooser, NoticesAtOnceThatItDoesNotPayAnyMore) {
  Dice dice(5);
  CodecChooser chooser(Ticking{});
  const Tensor type = row(Dtype::kUint8, 40'000);
  EXPECT_NE(chooser.pack(type, ByteVector(40'000), kSlow).codec, Codec::kRaw);
  const ByteVector noise = random_bytes(dice, 40'000);
  // Each codec is tried once more, at most.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chooser.pack(type, noise, kSlow), Packed{});
  for (std::size_t codec = 1; codec < 4; ++codec) EXPECT_EQ(chooser.measured()[codec].packed_share, 1);
}

TEST(CodecChooser, TriesForTwoPerCentOfTheTransfers) {
  Dice dice(6);
  CodecChooser chooser(Ticking{});
  const Tensor type = row(Dtype::kUint8, 10'000);
  const ByteVector noise = random_bytes(dice, 10'000);
  double largest_trial = 0;
  int trials = 0;
  for (int i = 0; i < 5000; ++i) {
    const double before = chooser.probe_seconds();
    EXPECT_EQ(chooser.pack(type, noise, 1e9).codec, Codec::kRaw);
    const double trial = chooser.probe_seconds() - before;
    if (trial > 0) ++trials;
    largest_trial = std::max(largest_trial, trial);
    ASSERT_LE(chooser.probe_seconds(), 0.02 * chooser.transfer_seconds() + largest_trial);
  }
  EXPECT_NEAR(chooser.transfer_seconds(), 0.05, 1e-9);
  EXPECT_GT(trials, 5);
}

TEST(CodecChooser, WorksWithTheMachinesClock) {
  CodecChooser chooser;
  const Tensor type = row(Dtype::kInt64, 100'000);
  const ByteVector zeros(800'000);
  const Packed packed = chooser.pack(type, zeros, kSlow);
  EXPECT_NE(packed.codec, Codec::kRaw);
  EXPECT_EQ(sent(packed, type, zeros), zeros);
}

}  // namespace
}  // namespace atl::infer::wire
