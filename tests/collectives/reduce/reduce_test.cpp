// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/core/error.h"
#include "tests/collectives/reduce/harsh_float_mode.h"
#include "tests/collectives/reduce/reduce_support.h"

namespace atl::collectives {
namespace {

/// Folds arrays of one C++ type; fails the test unless all instruction sets and fold() agree.
template <class T>
std::vector<T> folded(const Fold& how, const std::vector<std::vector<T>>& sources) {
  std::vector<const std::byte*> addresses;
  for (const auto& source : sources) addresses.push_back(reinterpret_cast<const std::byte*>(source.data()));
  const std::size_t count = sources[0].size() * sizeof(T) / size_of(how.dtype);
  std::vector<T> result(sources[0].size());
  fold(how, addresses, reinterpret_cast<std::byte*>(result.data()), count);
  for (const Simd simd : simds()) {
    std::vector<T> other(result.size());
    fold_with(simd, how, addresses, reinterpret_cast<std::byte*>(other.data()), count);
    EXPECT_EQ(std::memcmp(result.data(), other.data(), result.size() * sizeof(T)), 0) << to_string(simd);
  }
  return result;
}

/// Returns the code of `value` in `dtype`: PREMUL_SUM of a single source.
std::uint16_t encoded(DataType dtype, float value) {
  const Fold how{.dtype = dtype, .op = ReduceOp::kPremulSum, .premultiply = true, .factor = value};
  switch (dtype) {
    case DataType::kFloat16: return folded<std::uint16_t>(how, {{0x3C00}})[0];
    case DataType::kBFloat16: return folded<std::uint16_t>(how, {{0x3F80}})[0];
    case DataType::kFloat8E4M3: return folded<std::uint8_t>(how, {{0x38}})[0];
    default: return folded<std::uint8_t>(how, {{0x3C}})[0];
  }
}

std::string refusal(const Fold& how, std::size_t source_count = 2) {
  std::array<std::byte, 64> memory{};
  const std::vector<const std::byte*> sources(source_count, memory.data());
  try {
    fold(how, sources, memory.data(), 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

void expect_words(const std::string& message, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "'" << message << "' lacks " << word;
}

TEST(Reduce, RoundsFloat16ToNearestEven) {
  EXPECT_EQ(encoded(DataType::kFloat16, 65504.0F), 0x7BFF);
  EXPECT_EQ(encoded(DataType::kFloat16, 65519.996F), 0x7BFF);
  EXPECT_EQ(encoded(DataType::kFloat16, 65520.0F), 0x7C00);
  EXPECT_EQ(encoded(DataType::kFloat16, -kInfinity), 0xFC00);
  EXPECT_EQ(encoded(DataType::kFloat16, -kNan), 0x7E00);
  EXPECT_EQ(encoded(DataType::kFloat16, 0x1p-24F), 0x0001);
  EXPECT_EQ(encoded(DataType::kFloat16, 0x1p-25F), 0x0000);
  EXPECT_EQ(encoded(DataType::kFloat16, 0x1.8p-24F), 0x0002);
  EXPECT_EQ(encoded(DataType::kFloat16, -0x1.ffcp-15F), 0x8400);
  EXPECT_EQ(encoded(DataType::kFloat16, 1 + 0x1p-11F), 0x3C00);
  EXPECT_EQ(encoded(DataType::kFloat16, 1 + 0x3p-11F), 0x3C02);
  EXPECT_EQ(encoded(DataType::kFloat16, -0.0F), 0x8000);
  EXPECT_EQ(encoded(DataType::kFloat16, std::numeric_limits<float>::denorm_min()), 0x0000);
}

TEST(Reduce, RoundsBFloat16ToNearestEven) {
  EXPECT_EQ(encoded(DataType::kBFloat16, std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(encoded(DataType::kBFloat16, std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(encoded(DataType::kBFloat16, std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(encoded(DataType::kBFloat16, std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(encoded(DataType::kBFloat16, -kInfinity), 0xFF80);
  EXPECT_EQ(encoded(DataType::kBFloat16, std::bit_cast<float>(0xFF800001U)), 0x7FC0);
  EXPECT_EQ(encoded(DataType::kBFloat16, std::bit_cast<float>(0x00018000U)), 0x0002);
}

TEST(Reduce, Float8E4M3SaturatesAsPyTorchDoes) {
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 448.0F), 0x7E);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 464.5F), 0x7E);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, -1e30F), 0xFE);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, kInfinity), 0x7E);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, kNan), 0x7F);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 400.0F), 0x7C);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 432.0F), 0x7E);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 0x1p-9F), 0x01);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, 0x1p-10F), 0x00);
  EXPECT_EQ(encoded(DataType::kFloat8E4M3, -0x1.8p-9F), 0x82);
}

TEST(Reduce, Float8E5M2OverflowsToInfinity) {
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, 57344.0F), 0x7B);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, 61439.0F), 0x7B);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, 61440.0F), 0x7C);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, -kInfinity), 0xFC);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, kNan), 0x7F);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, 0x1p-16F), 0x01);
  EXPECT_EQ(encoded(DataType::kFloat8E5M2, 0x1p-17F), 0x00);
}

// Proves C-3.
TEST(Reduce, NarrowFloatsAreRoundedOnce) {
  // 2048 + 1 is a tie in float16: rounding after every addition would lose both ones.
  EXPECT_EQ(folded<std::uint16_t>({.dtype = DataType::kFloat16}, {{0x6800}, {0x3C00}, {0x3C00}})[0], 0x6801);
  // A sum beyond float16's range comes back into it by the division.
  const Fold average{.dtype = DataType::kFloat16, .op = ReduceOp::kAvg, .divisor = 4};
  EXPECT_EQ(folded<std::uint16_t>(average, {{0x7BFF}, {0x7BFF}, {0x7BFF}, {0x7BFF}})[0], 0x7BFF);
  EXPECT_EQ(folded<std::uint16_t>({.dtype = DataType::kBFloat16}, {{0x4380}, {0x3F80}, {0x3F80}})[0], 0x4381);
}

TEST(Reduce, MinAndMaxPropagateNanAndKeepTheFirstZero) {
  const std::vector<float> a{1, kNan, 1, -0.0F, 0.0F, -kInfinity, kNan};
  const std::vector<float> b{2, 1, -kNan, 0.0F, -0.0F, kInfinity, kNan};
  const auto low = folded<float>({.op = ReduceOp::kMin}, {a, b});
  const auto high = folded<float>({.op = ReduceOp::kMax}, {a, b});
  EXPECT_EQ(low[0], 1);
  EXPECT_EQ(high[0], 2);
  for (const int lane : {1, 2, 6}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(low[lane]), 0x7FC00000U) << lane;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(high[lane]), 0x7FC00000U) << lane;
  }
  EXPECT_TRUE(std::signbit(low[3]) && std::signbit(high[3]));
  EXPECT_FALSE(std::signbit(low[4]) || std::signbit(high[4]));
  EXPECT_EQ(low[5], -kInfinity);
  EXPECT_EQ(high[5], kInfinity);
}

TEST(Reduce, SumsKeepSubnormalsInfinitiesAndTheSignOfZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto sum = folded<float>({}, {{tiny, -0.0F, kInfinity, kInfinity, 3e38F}, {tiny, -0.0F, -kInfinity, 1, 3e38F}});
  EXPECT_EQ(sum[0], 2 * tiny);
  EXPECT_TRUE(sum[1] == 0 && std::signbit(sum[1]));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum[2]), 0x7FC00000U);
  EXPECT_EQ(sum[3], kInfinity);
  EXPECT_EQ(sum[4], kInfinity);
}

TEST(Reduce, IntegersWrapAndAveragesTruncateTowardsZero) {
  EXPECT_EQ(folded<std::int8_t>({.dtype = DataType::kInt8}, {{127}, {1}})[0], -128);
  EXPECT_EQ(folded<std::uint8_t>({.dtype = DataType::kUInt8}, {{255}, {2}})[0], 1);
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  const Fold product{.dtype = DataType::kInt64, .op = ReduceOp::kProduct};
  EXPECT_EQ(folded<std::int64_t>(product, {{kLow, 3}, {-1, -4}}), (std::vector<std::int64_t>{kLow, -12}));
  const Fold average{.dtype = DataType::kInt32, .op = ReduceOp::kAvg, .divisor = 2};
  EXPECT_EQ(folded<std::int32_t>(average, {{-4, 4}, {1, -1}}), (std::vector<std::int32_t>{-1, 1}));
  const Fold scaled{.dtype = DataType::kUInt8, .op = ReduceOp::kPremulSum, .premultiply = true, .factor = -2};
  EXPECT_EQ(folded<std::uint8_t>(scaled, {{3}, {4}})[0], 242);
}

TEST(Reduce, DivisorsBelowTwoAndFactorsOfOtherOperationsDoNothing) {
  for (const int divisor : {0, 1}) {
    EXPECT_EQ(folded<float>({.op = ReduceOp::kAvg, .divisor = divisor}, {{1}, {2}})[0], 3);
  }
  EXPECT_EQ(folded<float>({.op = ReduceOp::kSum, .premultiply = true, .factor = 7, .divisor = 5}, {{1}, {2}})[0], 3);
  EXPECT_EQ(folded<float>({.op = ReduceOp::kPremulSum, .factor = 7}, {{1}, {2}})[0], 3);
}

TEST(Reduce, FloatSumsAreCloseToFloat64) {
  std::vector<std::vector<float>> sources(9, std::vector<float>(1000));
  std::vector<double> exact(1000);
  std::vector<double> magnitude(1000);
  std::uint32_t state = 1;
  for (auto& source : sources) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      state = state * 1664525U + 1013904223U;
      source[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
      exact[i] += source[i];
      magnitude[i] += std::fabs(source[i]);
    }
  }
  const auto sum = folded<float>({}, sources);
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], exact[i], 8 * 0x1p-24 * magnitude[i]) << i;
}

TEST(Reduce, TheCallersFloatingPointModeChangesNothing) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<float>> sources{{tiny, 1}, {tiny, 0x1p-24F}};
  const auto expected = folded<float>({}, sources);
  std::vector<float> result;
  std::vector<std::uint16_t> half;
  {
    const HarshFloatMode mode;
    result = folded<float>({}, sources);
    half = folded<std::uint16_t>({.dtype = DataType::kFloat16}, {{0x0001}, {0x0001}});
    EXPECT_TRUE(mode.is_kept());
  }
  EXPECT_EQ(std::memcmp(result.data(), expected.data(), sizeof(float) * expected.size()), 0);
  EXPECT_EQ(expected[0], 2 * tiny);
  EXPECT_EQ(expected[1], 1);
  EXPECT_EQ(half[0], 0x0002);
}

TEST(Reduce, RefusesWhatHasNoMeaning) {
  for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const Fold how{.dtype = static_cast<DataType>(dtype), .op = static_cast<ReduceOp>(op)};
      const std::string message = refusal(how);
      if (is_supported(how.op, how.dtype)) {
        EXPECT_EQ(message, "");
      } else {
        expect_words(message, {to_string(how.dtype), to_string(how.op), "not defined"});
      }
    }
  }
  expect_words(refusal({.dtype = static_cast<DataType>(99)}), {"not defined"});
  expect_words(refusal({.op = static_cast<ReduceOp>(99)}), {"not defined"});
  expect_words(refusal({}, 0), {"source"});
  expect_words(refusal({.op = ReduceOp::kAvg, .divisor = -1}), {"-1"});
}

TEST(Reduce, IntegersRefuseAFactorThatIsNotWhole) {
  Fold how{.dtype = DataType::kInt32, .op = ReduceOp::kPremulSum, .premultiply = true};
  for (const double factor : {0.5, 0x1p64, -0x1p64, std::nan(""), std::numeric_limits<double>::infinity()}) {
    how.factor = factor;
    expect_words(refusal(how), {"int32", "whole factor"});
  }
  how.premultiply = false;
  EXPECT_EQ(refusal(how), "");
}

TEST(Reduce, NoElementsNeedNoMemory) {
  const std::vector<const std::byte*> sources{nullptr, nullptr};
  for (const Simd simd : simds()) EXPECT_NO_THROW(fold_with(simd, {}, sources, nullptr, 0));
}

TEST(Reduce, ASimdThatIsMissingIsRefused) {
  const auto beyond = static_cast<Simd>(static_cast<int>(detail::machine_simd()) + 1);
  std::byte element[4] = {};
  const std::vector<const std::byte*> sources{element};
  try {
    fold_with(beyond, {}, sources, element, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
}

TEST(Reduce, SimdCanBeLoweredButNotRaised) {
  using detail::choose_simd;
  EXPECT_EQ(choose_simd(nullptr, Simd::kAvx512), Simd::kAvx512);
  EXPECT_EQ(choose_simd("", Simd::kAvx2), Simd::kAvx2);
  EXPECT_EQ(choose_simd("plain", Simd::kAvx512), Simd::kPlain);
  EXPECT_EQ(choose_simd("avx2", Simd::kAvx512), Simd::kAvx2);
  EXPECT_EQ(choose_simd("avx512", Simd::kAvx2), Simd::kAvx2);
  EXPECT_EQ(choose_simd("sse", Simd::kAvx512), std::nullopt);
  EXPECT_LE(best_simd(), detail::machine_simd());
}

}  // namespace
}  // namespace atl::collectives
